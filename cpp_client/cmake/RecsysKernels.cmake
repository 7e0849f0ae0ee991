# The kernels of recsys_ops, once for each set of instructions: ops/isa.h chooses among them when they run.
set_source_files_properties(ops/kernels/plain.cpp ops/kernels/avx2.cpp ops/kernels/avx512.cpp ops/kernels/amx.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 -O3 -mavx2 -mfma -mf16c)
  set_source_files_properties(ops/kernels/avx2.cpp PROPERTIES COMPILE_OPTIONS "${avx2}")
  # GCC 12 takes its own intrinsics for uses of uninitialized values.
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -Wno-uninitialized)
  set_source_files_properties(ops/kernels/avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512}")
  set_source_files_properties(ops/kernels/amx.cpp PROPERTIES COMPILE_OPTIONS
    "${avx512};-mamx-tile;-mamx-int8;-mamx-bf16")
else()
  set_source_files_properties(ops/kernels/avx2.cpp ops/kernels/avx512.cpp ops/kernels/amx.cpp PROPERTIES
    HEADER_FILE_ONLY ON)
endif()
