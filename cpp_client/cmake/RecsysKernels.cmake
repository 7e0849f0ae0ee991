# The kernels of recsys_ops, once for each set of instructions: ops/cpu/isa.h chooses among them when they run.
set(x86 ops/kernels/x86/avx2.cpp ops/kernels/x86/avx512.cpp ops/kernels/x86/amx.cpp)
set(arm ops/kernels/arm/neon.cpp ops/kernels/arm/dotprod.cpp ops/kernels/arm/i8mm.cpp)
# Products and sums are rounded as they are written, so that bits are the same on all sets but where lanes say otherwise.
# Nobody asks for exceptions of numbers, and choices between two numbers become vectors without them.
set(kernels -O3 -ffp-contract=off -fno-trapping-math)
if(RECSYS_SANITIZE)
  # Compiled in a third of the time. Of the checks of undefined behavior those are left out that the address sanitizer
  # makes as well, when memory is read; for all lanes' helpers they are many.
  list(TRANSFORM kernels REPLACE "^-O3$" -O1)
  list(APPEND kernels -fno-sanitize=null,object-size,vptr)
endif()
set_source_files_properties(ops/kernels/plain.cpp ${x86} ${arm} PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${kernels}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 ${kernels} -mavx2 -mfma -mf16c)
  set_source_files_properties(ops/kernels/x86/avx2.cpp PROPERTIES COMPILE_OPTIONS "${avx2}")
  # GCC 12 takes its own intrinsics for uses of uninitialized values.
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -Wno-uninitialized)
  set_source_files_properties(ops/kernels/x86/avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512}")
  set_source_files_properties(ops/kernels/x86/amx.cpp PROPERTIES COMPILE_OPTIONS
    "${avx512};-mamx-tile;-mamx-int8;-mamx-bf16")
else()
  set_source_files_properties(${x86} PROPERTIES HEADER_FILE_ONLY ON)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set_source_files_properties(ops/kernels/arm/dotprod.cpp PROPERTIES COMPILE_OPTIONS "${kernels};-march=armv8.2-a+dotprod")
  set_source_files_properties(ops/kernels/arm/i8mm.cpp PROPERTIES COMPILE_OPTIONS "${kernels};-march=armv8.2-a+dotprod+i8mm")
else()
  set_source_files_properties(${arm} PROPERTIES HEADER_FILE_ONLY ON)
endif()
