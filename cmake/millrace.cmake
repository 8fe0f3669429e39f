# millrace_module(NAME DEPS a b c [LIBS x y] [EXCLUDE file...])
#
# One folder under src/ is one static library, mr_NAME. DEPS is the module's row of the include
# table in ARCHITECTURE.md: tests/layering.py holds every #include against it. `base` is implied.
# Files named *_test.cc become the module's test binary, NAME_test; those that count allocations do
# so by operators new and delete of their own, which ThreadSanitizer's runtime does not allow.
function(millrace_module NAME)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;EXCLUDE" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${NAME})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc ${dir}/*/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(MILLRACE_SANITIZE MATCHES thread)
    list(FILTER tests EXCLUDE REGEX "allocation_test\\.cc$")
  endif()
  foreach(file ${ARG_EXCLUDE})
    list(REMOVE_ITEM sources ${dir}/${file})
  endforeach()

  add_library(mr_${NAME} STATIC ${sources})
  target_link_libraries(mr_${NAME} PUBLIC millrace_options ${ARG_LIBS})
  if(NOT NAME STREQUAL base)
    target_link_libraries(mr_${NAME} PUBLIC mr_base)
  endif()
  foreach(dep ${ARG_DEPS})
    target_link_libraries(mr_${NAME} PUBLIC mr_${dep})
  endforeach()

  if(tests AND MILLRACE_TESTS)
    add_executable(${NAME}_test ${tests})
    target_link_libraries(${NAME}_test PRIVATE mr_${NAME} GTest::gmock GTest::gtest_main)
    target_compile_definitions(${NAME}_test PRIVATE MILLRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME ${NAME} COMMAND ${NAME}_test)
  endif()
endfunction()
