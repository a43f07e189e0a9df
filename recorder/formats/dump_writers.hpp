// Writes values of Python as a pickle or as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vccl::records {

/// Receives a value piece by piece. All texts have to be valid UTF-8. In a dict, key() comes before each
/// value.
class DumpWriter {
 public:
  virtual ~DumpWriter() = default;
  virtual void begin_dict() = 0;
  virtual void key(std::string_view text) = 0;
  virtual void end_dict() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void pair(std::string_view first, std::string_view second) = 0;  // a tuple
  virtual void text(std::string_view text) = 0;
  virtual void integer(std::int64_t value) = 0;
  virtual void real(double value) = 0;
  virtual void flag(bool value) = 0;
  virtual void none() = 0;
  /// Returns what was written, once the outermost value is complete.
  virtual std::string take() = 0;
};

/// Writes protocol 2, which every Python 3 reads.
class PickleWriter final : public DumpWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}
  void begin_dict() override { bytes_ += "}("; }
  void key(std::string_view text) override { this->text(text); }
  void end_dict() override { bytes_ += 'u'; }
  void begin_list() override { bytes_ += "]("; }
  void end_list() override { bytes_ += 'e'; }
  void pair(std::string_view first, std::string_view second) override;
  void text(std::string_view text) override;
  void integer(std::int64_t value) override;
  void real(double value) override;
  void flag(bool value) override { bytes_ += value ? '\x88' : '\x89'; }
  void none() override { bytes_ += 'N'; }
  std::string take() override { return std::move(bytes_ += '.'); }

 private:
  void little_endian(std::uint64_t value, int bytes);
  std::string bytes_;
};

class JsonWriter final : public DumpWriter {
 public:
  void begin_dict() override { open('{'); }
  void key(std::string_view text) override;
  void end_dict() override { close('}'); }
  void begin_list() override { open('['); }
  void end_list() override { close(']'); }
  void pair(std::string_view first, std::string_view second) override;
  void text(std::string_view text) override;
  void integer(std::int64_t value) override;
  void real(double value) override;
  void flag(bool value) override;
  void none() override;
  std::string take() override { return std::move(bytes_); }

 private:
  void open(char bracket);
  void close(char bracket);
  void separate();
  void quoted(std::string_view text);
  std::string bytes_;
  std::vector<bool> has_values_;  // of the lists and dicts that are open
  bool after_key_ = false;
};

}  // namespace vccl::records
