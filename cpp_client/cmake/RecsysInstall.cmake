# The runtime library for other programs: `recsys`, shared and static, with a package for find_package(recsys).
#   cmake --install <build> --component recsys --prefix <where>
include(CMakePackageConfigHelpers)

set(recsys_rooms $<TARGET_OBJECTS:recsys_base> $<TARGET_OBJECTS:recsys_format> $<TARGET_OBJECTS:recsys_request>
  $<TARGET_OBJECTS:recsys_model> $<TARGET_OBJECTS:recsys_ops> $<TARGET_OBJECTS:recsys_ops_torch>
  $<TARGET_OBJECTS:recsys_outside>)
add_library(recsys SHARED EXCLUDE_FROM_ALL ${recsys_rooms})
set_target_properties(recsys PROPERTIES
  LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  # The folder of the installed torch package, which the loader does not search by itself.
  INSTALL_RPATH_USE_LINK_PATH ON)
target_link_libraries(recsys PRIVATE recsys_options recsys_torch OpenSSL::Crypto ZLIB::ZLIB Threads::Threads PkgConfig::HIREDIS)
add_library(recsys_static STATIC EXCLUDE_FROM_ALL ${recsys_rooms})
set_target_properties(recsys_static PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME recsys)

configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/cmake/recsysConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/recsysConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/recsys
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/recsysConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS recsys recsys_static OPTIONAL
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT recsys NAMELINK_COMPONENT recsys
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT recsys)
foreach(header batch_writer error model request signature span)
  install(FILES include/recsys/${header}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/recsys COMPONENT recsys)
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/recsysConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/recsysConfigVersion.cmake
  ${CMAKE_CURRENT_SOURCE_DIR}/cmake/RecsysTorch.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/recsys COMPONENT recsys)
