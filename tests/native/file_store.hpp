// A store for ranks that are forked processes: a file a key, in a folder of its own that goes with the store.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "transport/error.hpp"
#include "transport/store.hpp"

namespace vccl {

/// Make it before forking; the process that made it removes the folder.
class FileStore final : public Store {
 public:
  FileStore() {
    std::string name = (std::filesystem::temp_directory_path() / "vccl-store-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error(ErrorCode::system, "mkdtemp failed");
    folder_ = name;
  }
  ~FileStore() override {
    std::error_code ignored;
    if (getpid() == owner_) std::filesystem::remove_all(folder_, ignored);
  }

  /// Processes of other users too.
  void let_everybody_in() { std::filesystem::permissions(folder_, std::filesystem::perms::all); }

  void set(const std::string& key, const std::string& value) override {
    // Written aside and renamed: a reader sees all of it or nothing. Threads of one process need different
    // names.
    std::ostringstream aside;
    aside << path(key).string() << "." << getpid() << "." << std::this_thread::get_id();
    std::ofstream file(aside.str(), std::ios::binary);
    if (!file) throw_system("opening " + aside.str());
    file << value;
    file.close();
    std::filesystem::rename(aside.str(), path(key));
  }

  std::string get(const std::string& key, const Deadline& deadline) override {
    while (true) {
      std::ifstream file(path(key), std::ios::binary);
      if (file) return {std::istreambuf_iterator<char>(file), {}};
      if (errno == EMFILE) throw_system("opening " + path(key).string());
      if (deadline.passed()) throw Error(ErrorCode::timeout, "nobody set the key " + key);
      usleep(500);
    }
  }

  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    // The folder's lock: an open file is an owner of its own, so threads exclude each other, too.
    const int lock = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) throw_system("locking " + folder_.string());
    std::string found;
    if (std::ifstream file(path(key), std::ios::binary); file)
      found = {std::istreambuf_iterator<char>(file), {}};
    if (found == expected) set(key, found = value);
    close(lock);
    return found;
  }

  void remove(const std::string& key) override {
    std::error_code ignored;
    std::filesystem::remove(path(key), ignored);
  }

  std::size_t keys() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

 private:
  std::filesystem::path path(std::string key) const {
    for (char& c : key) {
      if (c == '/') c = '-';
    }
    return folder_ / key;
  }

  std::filesystem::path folder_;
  const pid_t owner_ = getpid();
};

}  // namespace vccl
