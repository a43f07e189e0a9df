#include "csrc_device/torch/python/code_facts.hpp"

#include <memory>
#include <string>
#include <utility>

#include "base/program_files.hpp"

namespace vdev {
namespace {

// Python calls it PyUnstable_Code_GetExtra() since 3.12, and keeps the names before.
Py_ssize_t place_in_codes() {
  static const Py_ssize_t place =
      _PyEval_RequestCodeExtraIndex([](void* facts) { delete static_cast<CodeFacts*>(facts); });
  return place;
}

std::string utf8(PyObject* text) {
  const char* characters = PyUnicode_AsUTF8(text);
  if (characters == nullptr) PyErr_Clear();
  return characters == nullptr ? "?" : characters;
}

// The frames of torch and vccl, and those between two functions: torch wraps its deprecated functions by
// typing_extensions, and Python 3.13 by warnings.
bool tells_nothing(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.find("/vccl/") != std::string::npos ||
         file.ends_with("/typing_extensions.py") || file.ends_with("/warnings.py") ||
         file.ends_with("/contextlib.py") || file.ends_with("/functools.py");
}

CodeFacts::Kind kind_of(const std::string& file) {
  if (base::is_of_program(file)) return CodeFacts::Kind::program;
  return tells_nothing(file) ? CodeFacts::Kind::tells_nothing : CodeFacts::Kind::library;
}

// One for each text, however often a function is defined anew. They are never freed, because others keep
// their addresses. The caller holds the interpreter's lock, which guards them.
const PythonLine& kept(PythonLine line) {
  static auto& lines = *new std::unordered_map<std::string, std::unique_ptr<const PythonLine>>();
  auto& known = lines[line.text()];
  if (!known) known = std::make_unique<const PythonLine>(std::move(line));
  return *known;
}

}  // namespace

CodeFacts& facts_of(PyCodeObject* code) {
  auto* object = reinterpret_cast<PyObject*>(code);
  void* known = nullptr;
  if (_PyCode_GetExtra(object, place_in_codes(), &known) == 0 && known != nullptr)
    return *static_cast<CodeFacts*>(known);
  auto facts = std::make_unique<CodeFacts>(CodeFacts{kind_of(utf8(code->co_filename)), {}});
  if (_PyCode_SetExtra(object, place_in_codes(), facts.get()) == 0) return *facts.release();
  PyErr_Clear();  // there is no memory, or all places are taken
  thread_local CodeFacts last;
  return last = std::move(*facts);
}

const PythonLine& line_of(PyFrameObject* frame, PyCodeObject* code, CodeFacts& facts) {
#if PY_VERSION_HEX >= 0x030B0000
  const int place = PyFrame_GetLasti(frame);
#else
  const int place = PyFrame_GetLineNumber(frame);  // Python 3.10 does not tell the place
#endif
  auto& line = facts.lines[place];
  // Python decodes a table of the function for the number, from its beginning.
  if (line == nullptr)
    line = &kept({utf8(code->co_name), utf8(code->co_filename), PyFrame_GetLineNumber(frame)});
  return *line;
}

}  // namespace vdev
