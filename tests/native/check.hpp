// The whole of a test framework that the torch-free tests need: TEST registers, CHECK throws, main runs.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registrar {
  Registrar(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << file << ":" << line << ": " << text << ": " << a << " != " << b;
  throw Failure(out.str());
}

inline void that(bool ok, const char* text, const char* file, int line) {
  if (!ok) throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

/// Returns whether the case is to run: with no arguments all do. An argument NAME takes those whose name
/// contains it, and an argument -NAME leaves out the case of that name.
inline bool is_chosen(const char* name, int argc, char** argv) {
  bool chooses = false, chosen = false;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-') {
      if (std::strcmp(name, argv[i] + 1) == 0) return false;
    } else {
      chooses = true;
      chosen |= std::strstr(name, argv[i]) != nullptr;
    }
  }
  return chosen || !chooses;
}

/// Runs the chosen cases. An argument that leaves out a case which does not exist is an error.
inline int run(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') continue;
    bool known = false;
    for (auto& c : cases()) known |= std::strcmp(c.name, argv[i] + 1) == 0;
    if (known) continue;
    std::printf("there is no case %s\n", argv[i] + 1);
    return 2;
  }
  for (auto& c : cases()) {
    if (!is_chosen(c.name, argc, argv)) continue;
    try {
      c.body();
      ++passed;
    } catch (const std::exception& e) {
      ++failed;
      std::printf("FAILED %s: %s\n", c.name, e.what());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  std::fflush(stdout);
  return failed ? 1 : (passed ? 0 : 5);
}

}  // namespace check

inline void check_contains(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos)
    throw check::Failure("\"" + part + "\" is not in \"" + text + "\"");
}

#define TEST(name)                                          \
  static void name();                                       \
  static ::check::Registrar name##_registrar(#name, &name); \
  static void name()
#define CHECK(x) ::check::that(static_cast<bool>(x), #x, __FILE__, __LINE__)
#define CHECK_EQ(a, b) ::check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expression, type)                                       \
  do {                                                                       \
    bool thrown = false;                                                     \
    try {                                                                    \
      (void)(expression);                                                    \
    } catch (const type&) {                                                  \
      thrown = true;                                                         \
    }                                                                        \
    ::check::that(thrown, #expression " throws " #type, __FILE__, __LINE__); \
  } while (0)
#define TEST_MAIN                    \
  int main(int argc, char** argv) {  \
    return ::check::run(argc, argv); \
  }
