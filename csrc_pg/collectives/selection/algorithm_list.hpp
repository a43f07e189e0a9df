// Every algorithm there is. This table says what can be done; tuned_table.hpp says what is chosen.
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/buffers/splits.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/hierarchical/hierarchical.hpp"
#include "csrc_pg/collectives/oneshot/oneshot.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"
#include "csrc_pg/collectives/staged/staged.hpp"

namespace vccl {

// Where the tuned table's choice cannot do a call, the selector takes the first algorithm of the collective
// here that can. A new algorithm needs a line here and its declaration in its family's header. `vccl.bench
// tune` finds it by itself.
inline constexpr Algorithm kAlgorithms[] = {
    {"oneshot", Collective::all_reduce, Reach::announced, oneshot_all_reduce, oneshot_payload},
    {"oneshot", Collective::all_gather, Reach::announced, oneshot_all_gather, oneshot_payload},
    {"oneshot", Collective::broadcast, Reach::announced, oneshot_broadcast, oneshot_payload},
    {"oneshot", Collective::reduce_scatter, Reach::announced, oneshot_reduce_scatter, oneshot_payload},
    {"oneshot", Collective::reduce, Reach::announced, oneshot_reduce, oneshot_payload},
    {"oneshot", Collective::gather, Reach::announced, oneshot_gather, oneshot_payload},
    {"oneshot", Collective::scatter, Reach::announced, oneshot_scatter, oneshot_payload},
    {"oneshot", Collective::all_to_all, Reach::announced, oneshot_all_to_all, oneshot_payload},
    {"oneshot", Collective::barrier, Reach::announced, oneshot_barrier, oneshot_payload},

    {"direct", Collective::all_reduce, Reach::mapped, direct_all_reduce},
    {"direct", Collective::all_gather, Reach::mapped, direct_all_gather},
    {"direct", Collective::broadcast, Reach::mapped, direct_broadcast},
    {"direct", Collective::reduce_scatter, Reach::mapped, direct_reduce_scatter},
    {"direct", Collective::reduce, Reach::mapped, direct_reduce},
    {"direct", Collective::gather, Reach::mapped, direct_gather},
    {"direct", Collective::scatter, Reach::mapped, direct_scatter},
    {"direct", Collective::all_to_all, Reach::mapped, direct_all_to_all, split_payload},

    {"staged", Collective::all_reduce, Reach::one_host, staged_all_reduce},
    {"staged", Collective::reduce_scatter, Reach::one_host, staged_reduce_scatter},
    {"staged", Collective::reduce, Reach::one_host, staged_reduce},
    {"staged", Collective::all_gather, Reach::one_host, staged_all_gather},
    {"staged", Collective::broadcast, Reach::one_host, staged_broadcast},
    {"staged", Collective::gather, Reach::one_host, staged_gather},
    {"staged", Collective::scatter, Reach::one_host, staged_scatter},
    {"staged", Collective::all_to_all, Reach::one_host, staged_all_to_all, split_payload},

    {"hierarchical", Collective::all_reduce, Reach::across, hierarchical_all_reduce},
    {"hierarchical", Collective::all_gather, Reach::across, hierarchical_all_gather},
    {"hierarchical", Collective::broadcast, Reach::across, hierarchical_broadcast},
    {"hierarchical", Collective::reduce_scatter, Reach::across, hierarchical_reduce_scatter},
    {"hierarchical", Collective::reduce, Reach::across, hierarchical_reduce},
    {"hierarchical", Collective::gather, Reach::across, hierarchical_gather},
    {"hierarchical", Collective::scatter, Reach::across, hierarchical_scatter},
    {"hierarchical", Collective::all_to_all, Reach::across, hierarchical_all_to_all, split_payload},

    {"ring", Collective::all_reduce, Reach::anywhere, ring_all_reduce},
    {"ring", Collective::all_gather, Reach::anywhere, ring_all_gather},
    {"ring", Collective::broadcast, Reach::anywhere, ring_broadcast},
    {"ring", Collective::reduce_scatter, Reach::anywhere, ring_reduce_scatter},
    {"ring", Collective::reduce, Reach::anywhere, ring_reduce},
    {"ring", Collective::gather, Reach::anywhere, ring_gather},
    {"ring", Collective::scatter, Reach::anywhere, ring_scatter},
    {"ring", Collective::all_to_all, Reach::anywhere, ring_all_to_all},
    {"ring", Collective::barrier, Reach::anywhere, ring_barrier},
};

}  // namespace vccl
