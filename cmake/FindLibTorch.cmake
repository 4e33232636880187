# Finds libtorch, from the PyPI wheel or any other libtorch, and makes two imported targets:
#
#   LibTorch::cpu    libtorch_cpu + libc10 and the include directories
#   LibTorch::cuda   the CUDA half: libtorch_cuda + libc10_cuda (only when TRIREME_CUDA is ON)
#
# The wheel's own find_package(Torch) demands a CUDA toolkit even for CPU use; this module does not.
#
# Input:  TRIREME_LIBTORCH   folder that holds torch/lib/libtorch_cpu.so or lib/libtorch_cpu.so
set(TRIREME_LIBTORCH "${CMAKE_SOURCE_DIR}/.deps/libtorch" CACHE PATH "Folder that holds libtorch")

find_path(LibTorch_INCLUDE_DIR ATen/ATen.h
  PATHS "${TRIREME_LIBTORCH}/torch/include" "${TRIREME_LIBTORCH}/include" NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu
  PATHS "${TRIREME_LIBTORCH}/torch/lib" "${TRIREME_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10
  PATHS "${TRIREME_LIBTORCH}/torch/lib" "${TRIREME_LIBTORCH}/lib" NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS
  LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  get_filename_component(_torch_lib_dir "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}")
  # One OpenMP runtime for libtorch and us: the one that lies beside it, where it brings its own.
  find_library(LibTorch_GOMP NAMES libgomp.so.1 gomp PATHS "${_torch_lib_dir}" NO_DEFAULT_PATH)
  if(NOT LibTorch_GOMP)
    set(LibTorch_GOMP gomp)
  endif()
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10;${LibTorch_GOMP}"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")

  # The wheel keeps NVIDIA's libraries in sibling folders; libtorch_cpu itself needs libcudart and libcupti.
  set(LibTorch_RPATH "${_torch_lib_dir}")
  file(GLOB _nvidia_lib_dirs "${TRIREME_LIBTORCH}/nvidia/*/lib")
  list(APPEND LibTorch_RPATH ${_nvidia_lib_dirs})
  set_property(TARGET LibTorch::cpu APPEND PROPERTY
    INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
endif()
