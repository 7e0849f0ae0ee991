# libtorch of the installed torch wheel, and the folder of fbgemm_gpu's libraries in its own.
# Given by `make native`: -DCMAKE_PREFIX_PATH=<torch.utils.cmake_prefix_path> -DRECSYS_FBGEMM_PATH=<folder>.
if(NOT DEFINED RECSYS_FBGEMM_PATH)
  message(FATAL_ERROR "RECSYS_FBGEMM_PATH: got nothing, expected the folder of the installed fbgemm_gpu package; "
    "`make native` finds it")
endif()
if(NOT EXISTS ${RECSYS_FBGEMM_PATH}/fbgemm_gpu_tbe_inference.so)
  message(FATAL_ERROR "RECSYS_FBGEMM_PATH: no fbgemm_gpu_tbe_inference.so in ${RECSYS_FBGEMM_PATH}, "
    "expected the folder of fbgemm-gpu 1.8")
endif()
find_package(Torch REQUIRED)
add_library(recsys_torch INTERFACE)
target_link_libraries(recsys_torch INTERFACE ${TORCH_LIBRARIES})
# System headers: their warnings are not ours.
target_include_directories(recsys_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(recsys_torch INTERFACE RECSYS_FBGEMM_PATH="${RECSYS_FBGEMM_PATH}")
