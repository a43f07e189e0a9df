/* The same collectives through MPI, timed as measure.py times them:
 *
 *     mpi COLLECTIVE BYTES ITERATIONS
 *
 * prints the microseconds of every call, one a line, and nothing else. float32, sum, root 0. BYTES counts the longest
 * buffer. The input is written anew before every call; a call has taken from when the last rank called until
 * the last rank had its result (MPI_Wtime is one clock on one host). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kPeriod = 4096 }; /* what is put in repeats then, as in cases.py */
static int rank, ranks, share, count;
static float source[kPeriod], *input, *output;

static void write_anew(size_t elements) {
  for (size_t at = 0; at < elements; at += kPeriod)
    memcpy(input + at, source, sizeof(float) * (elements - at < kPeriod ? elements - at : kPeriod));
}

static void call(const char *name) {
  const MPI_Comm all = MPI_COMM_WORLD;
  if (!strcmp(name, "all_reduce"))
    MPI_Allreduce(MPI_IN_PLACE, input, count, MPI_FLOAT, MPI_SUM, all);
  else if (!strcmp(name, "broadcast"))
    MPI_Bcast(input, count, MPI_FLOAT, 0, all);
  else if (!strcmp(name, "reduce"))
    MPI_Reduce(rank ? input : MPI_IN_PLACE, rank ? NULL : input, count, MPI_FLOAT, MPI_SUM, 0, all);
  else if (!strcmp(name, "all_gather"))
    MPI_Allgather(input, share, MPI_FLOAT, output, share, MPI_FLOAT, all);
  else if (!strcmp(name, "reduce_scatter"))
    MPI_Reduce_scatter_block(input, output, share, MPI_FLOAT, MPI_SUM, all);
  else if (!strcmp(name, "gather"))
    MPI_Gather(input, share, MPI_FLOAT, output, share, MPI_FLOAT, 0, all);
  else if (!strcmp(name, "scatter"))
    MPI_Scatter(input, share, MPI_FLOAT, output, share, MPI_FLOAT, 0, all);
  else if (!strcmp(name, "all_to_all"))
    MPI_Alltoall(input, share, MPI_FLOAT, output, share, MPI_FLOAT, all);
  else if (!strcmp(name, "send_recv"))
    MPI_Sendrecv(input, count, MPI_FLOAT, (rank + 1) % ranks, 0, output, count, MPI_FLOAT, (rank + ranks - 1) % ranks,
                 0, all, MPI_STATUS_IGNORE);
  else if (!strcmp(name, "barrier"))
    MPI_Barrier(all);
  else
    MPI_Abort(all, 2);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long bytes = atol(argv[2]);
  const int iterations = atoi(argv[3]);
  share = (int)(bytes / 4 / ranks ? bytes / 4 / ranks : 1);
  count = (int)(bytes / 4 ? bytes / 4 : 1);
  const size_t room = sizeof(float) * (size_t)(share * ranks > count ? share * ranks : count);
  input = malloc(room), output = malloc(room);
  double *begin = malloc(sizeof(double) * (size_t)iterations), *end = malloc(sizeof(double) * (size_t)iterations);
  if (!input || !output || !begin || !end) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int i = 0; i < kPeriod; ++i) source[i] = 1.0f;
  memset(output, 0, room);

  for (int i = -2; i < iterations; ++i) {
    write_anew(room / sizeof(float));
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    call(argv[1]);
    const double stop = MPI_Wtime();
    if (i >= 0) begin[i] = start, end[i] = stop;
  }
  MPI_Allreduce(MPI_IN_PLACE, begin, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, end, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0)
    for (int i = 0; i < iterations; ++i) printf("%.3f\n", (end[i] - begin[i]) * 1e6);
  MPI_Finalize();
  return 0;
}
