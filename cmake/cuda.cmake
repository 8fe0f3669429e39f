# The CUDA kernels: a library of their own, mr_kernels_cuda, where there is a compiler for it.
# Nothing else depends on them.
set(MILLRACE_CUDA AUTO CACHE STRING "the CUDA kernels: AUTO (where nvcc is found), ON or OFF")
if(NOT MILLRACE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MILLRACE_CUDA: found ${MILLRACE_CUDA}, expected AUTO, ON or OFF")
endif()

# Sets MILLRACE_HAS_CUDA, or says why not.
macro(millrace_find_cuda)
  set(MILLRACE_HAS_CUDA FALSE)
  if(NOT CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})  # both must agree on the standard library
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)  # newer GPUs compile the second when they load it
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  set(missing "no nvcc found")
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(missing "nvcc ${CMAKE_CUDA_COMPILER_VERSION} found, expected at least 12, which knows C++20")
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
      set(MILLRACE_HAS_CUDA TRUE)
      if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      endif()
      message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
    endif()
  endif()
  if(NOT MILLRACE_HAS_CUDA AND MILLRACE_CUDA STREQUAL ON)
    message(FATAL_ERROR "MILLRACE_CUDA=ON: ${missing}. Put nvcc in PATH, or its path in CUDACXX.")
  elseif(NOT MILLRACE_HAS_CUDA)
    message(STATUS "CUDA: ${missing}, the CUDA kernels are left out")
  endif()
endmacro()

if(NOT MILLRACE_CUDA STREQUAL OFF)
  millrace_find_cuda()
endif()

if(MILLRACE_HAS_CUDA)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  add_library(mr_kernels_cuda STATIC ${cuda_sources})
  # The options of the C++ targets are not nvcc's, so it only links with them.
  target_include_directories(mr_kernels_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(mr_kernels_cuda INTERFACE mr_kernels)
  # One rounding where the source has one, as for the other kernels. The constexpr functions of tensor/
  # run on the GPU too. 554: nvcc's parser overlooks the `requires` of TensorView's conversion.
  target_compile_options(mr_kernels_cuda PRIVATE
    -fmad=false -ftz=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr
    -diag-suppress=554 -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
  # Who merely has an nvcc, perhaps a newer one with more warnings, wants a build.
  if(MILLRACE_CUDA STREQUAL ON)
    target_compile_options(mr_kernels_cuda PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
  endif()
endif()
