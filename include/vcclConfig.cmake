# The CMake package of an installed vccl: find_package(vccl REQUIRED) makes the target vccl::vccl, with the headers
# <vccl/device.hpp>, <vccl/group.hpp> and <vccl/version.hpp>, and torch's headers and libraries.
#
#     cmake -S . -B build -DCMAKE_PREFIX_PATH=$(python -c "import vccl; print(vccl.cmake_prefix_path)")
#
# torch is the one beside vccl, or in TORCH_DIR, or the one that Python_EXECUTABLE (or python3) finds.
cmake_minimum_required(VERSION 3.18)

get_filename_component(VCCL_DIR "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TORCH_DIR)
  get_filename_component(beside "${VCCL_DIR}/../torch" ABSOLUTE)
  if(EXISTS "${beside}/version.py")
    set(TORCH_DIR "${beside}")
  else()
    if(NOT Python_EXECUTABLE)
      find_program(Python_EXECUTABLE NAMES python3 python)
    endif()
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
        "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('torch').origin))"
      OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(NOT EXISTS "${TORCH_DIR}/lib/libtorch_cpu.so")
  set(vccl_FOUND FALSE)
  set(vccl_NOT_FOUND_MESSAGE "vccl needs the torch that it was built with, and found none. Set TORCH_DIR to its folder.")
  return()
endif()

file(STRINGS "${TORCH_DIR}/version.py" version REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+" version "${version}")
string(REPLACE "." "_" folder "_torch_${version}")
set(library "${VCCL_DIR}/${folder}/libvccl.so")
if(NOT EXISTS "${library}")
  set(vccl_FOUND FALSE)
  set(vccl_NOT_FOUND_MESSAGE
    "${VCCL_DIR} has no libvccl.so for torch ${version}. Install a wheel of vccl that has one, or build it with this torch.")
  return()
endif()

if(NOT TARGET vccl::vccl)
  find_package(Threads REQUIRED)
  add_library(vccl::vccl SHARED IMPORTED)
  set_target_properties(vccl::vccl PROPERTIES
    IMPORTED_LOCATION "${library}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D;FMT_HEADER_ONLY=1"
    INTERFACE_INCLUDE_DIRECTORIES
      "${VCCL_DIR}/include;${TORCH_DIR}/include;${TORCH_DIR}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES
      "${TORCH_DIR}/lib/libtorch.so;${TORCH_DIR}/lib/libtorch_cpu.so;${TORCH_DIR}/lib/libc10.so;Threads::Threads")
endif()
set(vccl_FOUND TRUE)
