# trireme_library(NAME SOURCES a.cpp ... [DEPENDS trireme_base ...] [TORCH])
#   one static library a folder; TORCH gives libtorch and the shared precompiled header.
# trireme_test(NAME SOURCES a_test.cpp ... DEPENDS ... [LABELS unit] [TORCH] [TIMEOUT seconds] [NOT_PACKAGED] [WAITS])
#   one test binary and one ctest entry (each start loads libtorch, so a binary holds a folder's tests); WAITS: it waits more
#   than it computes, and runs as several processes at once.
#
# The presets compile eight files of a folder as one, for each start with torch's headers costs seconds. So names in
# unnamed namespaces are unique in a folder; a test file with short names of its own lies in a namespace of its own.

add_library(trireme_warnings INTERFACE)
target_compile_options(trireme_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-sign-compare>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(trireme_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>) # GCC bug 105651
endif()
target_include_directories(trireme_warnings INTERFACE "${CMAKE_SOURCE_DIR}")
target_link_libraries(trireme_warnings INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Its collector runs again and again over the precompiled header, a seventh of all time, unless it may let 1 GiB grow.
  target_compile_options(trireme_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-expand=200 --param ggc-min-heapsize=1048576>)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It takes a source for a header where one file includes several.
  target_compile_options(trireme_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(TRIREME_SANITIZE)
  # libtorch is not instrumented: container annotations would disagree across the border.
  target_compile_options(trireme_warnings INTERFACE -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer -Wno-maybe-uninitialized) # GCC's own headers warn falsely under sanitizers
  target_link_options(trireme_warnings INTERFACE -fsanitize=address,undefined)
endif()

add_library(trireme_torch INTERFACE)
target_link_libraries(trireme_torch INTERFACE LibTorch::cpu)
# at::parallel_for is a template that is serial where OpenMP is off.
target_compile_options(trireme_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
if(TRIREME_CUDA)
  target_link_libraries(trireme_torch INTERFACE LibTorch::cuda)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(trireme_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

file(WRITE "${CMAKE_BINARY_DIR}/pch_anchor.cpp" "// The precompiled header is built with this file.\n")
add_library(trireme_pch OBJECT "${CMAKE_BINARY_DIR}/pch_anchor.cpp")
target_link_libraries(trireme_pch PUBLIC trireme_warnings trireme_torch)
target_precompile_headers(trireme_pch PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${CMAKE_SOURCE_DIR}/cmake/torch_pch.h>")

function(trireme_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC trireme_warnings ${ARG_DEPENDS})
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC trireme_torch)
    target_precompile_headers(${name} REUSE_FROM trireme_pch)
  endif()
endfunction()

function(trireme_test name)
  cmake_parse_arguments(ARG "TORCH;NOT_PACKAGED;WAITS" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE trireme_warnings ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TRIREME_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # What tests do themselves takes little time; compiling them with -O1 takes a sixth longer, with -O2 a half.
  # Without warnings of values that may not be set: std::regex makes one at -Og.
  target_compile_options(${name} PRIVATE
    "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Og;-Wno-maybe-uninitialized>")
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE trireme_torch)
    # The precompiled header is made with -fPIC; an executable's own default, -fPIE, could not use it.
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE -fPIC)
    target_precompile_headers(${name} REUSE_FROM trireme_pch)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900) # it ends what hangs, and none on a machine four times slower
  endif()
  if(TRIREME_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(ARG_WAITS)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    math(EXPR seconds "${ARG_TIMEOUT} - 30") # so that it ends by itself, and shows what hung
    add_test(NAME ${name} COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/support/in_shards.py" ${seconds} $<TARGET_FILE:${name}>)
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  # What the package holds (packaging/make_package.py): of a build with CUDA, whose binaries all carry its kernels, only what needs it.
  set(of_a_gpu 0)
  if("gpu" IN_LIST ARG_LABELS)
    set(of_a_gpu 1)
  endif()
  if(NOT ARG_NOT_PACKAGED AND NOT "slow" IN_LIST ARG_LABELS AND ((TRIREME_CUDA AND of_a_gpu) OR NOT (TRIREME_CUDA OR of_a_gpu)))
    install(TARGETS ${name} RUNTIME DESTINATION libexec)
  endif()
  # Tests run beside each other: threads of OpenMP that spin while they wait would take the others' cores.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "OMP_WAIT_POLICY=passive;TORCH_FR_BUFFER_SIZE=0;TRIREME_BINARY=$<$<TARGET_EXISTS:trireme>:$<TARGET_FILE:trireme>>")
endfunction()

# trireme_simd_kernels(LIBRARY SOURCE OPTION...): compiles SOURCE once for each x86-64 level, each time in its own namespace
# (TRIREME_SIMD_NAMESPACE), and adds the objects to LIBRARY, which chooses one when the program starts. With WITH_BF16 as the
# first option also for v4 with AVX512-BF16. Such a source includes no library headers with inline functions, so that no
# AVX-512 code leaks into the rest.
function(trireme_simd_kernels library source)
  get_filename_component(stem "${source}" NAME_WE)
  set(levels base v3 v4)
  if(ARGV2 STREQUAL "WITH_BF16")
    list(APPEND levels v4_bf16)
    list(POP_FRONT ARGN)
  endif()
  foreach(level IN LISTS levels)
    set(objects "${library}_${stem}_${level}")
    add_library(${objects} OBJECT "${source}")
    target_link_libraries(${objects} PRIVATE trireme_warnings)
    target_compile_definitions(${objects} PRIVATE TRIREME_SIMD_NAMESPACE=simd_${level})
    target_compile_options(${objects} PRIVATE -O3 -ffp-contract=fast ${ARGN})
    if(level STREQUAL "v3")
      target_compile_options(${objects} PRIVATE -march=x86-64-v3)
    elseif(level MATCHES "^v4")
      target_compile_options(${objects} PRIVATE -march=x86-64-v4 -mprefer-vector-width=512)
    endif()
    if(level STREQUAL "v4_bf16")
      target_compile_options(${objects} PRIVATE -mavx512bf16)
    endif()
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# trireme_cuda_kernels(LIBRARY SOURCE): compiles SOURCE with nvcc and adds the object to LIBRARY, which stays one that the
# C++ compiler links. Such a source includes no libtorch; C++ files beside it launch what it has. Products and sums are not
# fused, so that a kernel's numbers are those of its functions compiled for the host.
function(trireme_cuda_kernels library source)
  get_filename_component(stem "${source}" NAME_WE)
  set(objects "${library}_${stem}")
  add_library(${objects} OBJECT "${source}")
  target_include_directories(${objects} PRIVATE "${CMAKE_SOURCE_DIR}")
  # CMake 3.25 does not know of nvcc 13 that it understands C++20.
  set_target_properties(${objects} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON UNITY_BUILD OFF)
  target_compile_options(${objects} PRIVATE --expt-relaxed-constexpr --fmad=false)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()
