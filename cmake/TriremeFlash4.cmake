# trireme_flash4: FlashAttention-4's kernels for Hopper, compiled from flash-attn-4 of PyPI (flash4/export_kernels.py), with
# NVIDIA's small runtime for such objects, TVM FFI's header, and flash4_kernels.inc, which lists them. Without the wheels
# there is no such target, and --attention flash4 says so.
#
# Input:  TRIREME_FLASH4   folder of the wheels (./dev build cuda)
set(TRIREME_FLASH4 "${CMAKE_SOURCE_DIR}/.deps/flash4" CACHE PATH "Folder of flash-attn-4 and nvidia-cutlass-dsl")
file(GLOB _wheels CONFIGURE_DEPENDS "${TRIREME_FLASH4}/.wheels-*") # ./dev leaves one for each list of wheels
set(_runtime "${TRIREME_FLASH4}/nvidia_cutlass_dsl/cu13/lib/libcuda_dialect_runtime_static.a")

if(NOT EXISTS "${_runtime}")
  message(STATUS "without FlashAttention-4: no ${_runtime}")
  return()
endif()

# As trireme/kernels/flash4_sizes.h: width, then rows of a tile of queries, causal and full, and of keys.
set(_flash4_widths "64 128 128 128" "128 64 80 128" "256 64 64 48")
set(_flash4_groups 1 2 3 4 5 6 7 8)

find_package(Python3 COMPONENTS Interpreter QUIET)
list(JOIN LibTorch_RPATH ":" _libraries)
set(_flash4_environment ${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${_libraries}"
  "PYTHONPATH=${TRIREME_FLASH4}:${TRIREME_FLASH4}/nvidia_cutlass_dsl/dsl_packages:${TRIREME_LIBTORCH}"
  PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore FLASH_ATTENTION_ARCH=sm_90 CUTE_DSL_ARCH=sm_90a FLASH_ATTENTION_NUM_SMS=132)
execute_process(COMMAND ${_flash4_environment} "${Python3_EXECUTABLE}" -c "import torch, cutlass, tvm_ffi"
  RESULT_VARIABLE _failed ERROR_VARIABLE _lacks OUTPUT_QUIET)
if(NOT _failed STREQUAL "0")
  message(FATAL_ERROR "FlashAttention-4: ${Python3_EXECUTABLE} cannot import what ${TRIREME_FLASH4} holds (${_failed}): "
    "${_lacks}\ngive the Python that installed it as -DPython3_EXECUTABLE, or an empty folder as -DTRIREME_FLASH4 to build without")
endif()

set(_script "${CMAKE_CURRENT_LIST_DIR}/flash4/export_kernels.py")
set(_folder "${CMAKE_BINARY_DIR}/flash4")
set(_list "")
set(_objects "")
foreach(_width IN LISTS _flash4_widths)
  string(REPLACE " " ";" _sizes "${_width}")
  list(POP_FRONT _sizes _width)
  foreach(_group IN LISTS _flash4_groups)
    string(APPEND _list "TRIREME_FLASH4(${_width}, ${_group})\n")
    set(_outputs "")
    foreach(_kernel forward_causal forward_full backward_causal backward_full)
      list(APPEND _outputs "${_folder}/trireme_flash4_w${_width}_g${_group}_${_kernel}.o")
    endforeach()
    add_custom_command(OUTPUT ${_outputs}
      COMMAND ${_flash4_environment} "${Python3_EXECUTABLE}" "${_script}" "${_folder}" ${_width} ${_group} ${_sizes}
      DEPENDS "${_script}" ${_wheels} COMMENT "Compiling FlashAttention-4 for heads ${_width} wide in groups of ${_group}" VERBATIM)
    list(APPEND _objects ${_outputs})
  endforeach()
endforeach()
file(CONFIGURE OUTPUT "${_folder}/flash4_kernels.inc" CONTENT "${_list}")
add_library(trireme_flash4 STATIC ${_objects})
set_target_properties(trireme_flash4 PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(trireme_flash4 SYSTEM INTERFACE "${_folder}" "${TRIREME_FLASH4}/tvm_ffi/include")
target_link_libraries(trireme_flash4 INTERFACE "${_runtime}" CUDA::cudart)
target_link_options(trireme_flash4 INTERFACE "LINKER:--wrap=cuda_dialect_init_library_once") # flash4_runner.cpp
