// Opens an artifact and computes one made-up request of two rows, without a server.
//
//   predict model.artifact
//
// docs/serve/native_model.md explains how to build it.
#include <recsys/error.h>
#include <recsys/model.h>

#include <cstdint>
#include <iostream>
#include <string_view>
#include <vector>

namespace {

constexpr std::int64_t kRows = 2;

template <typename T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: predict ARTIFACT\n";
    return 2;
  }
  try {
    const recsys::Model model = recsys::Model::Open(argv[1]);
    const recsys::Signature& signature = model.signature();

    // A request only references its numbers: keep them until Predict returns.
    std::vector<std::vector<float>> dense;
    for (const recsys::DenseInput& input : signature.dense)
      dense.emplace_back(kRows * input.width, 0.5F);
    const std::vector<std::int32_t> lengths(kRows, 1);  // one ID in each row
    const std::vector<std::int64_t> ids{0, 1};
    const std::vector<float> weights(kRows, 1.0F);

    recsys::RawRequest request;
    request.num_rows = kRows;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      request.dense.push_back({signature.dense[i].name, BytesOf(dense[i])});
    }
    for (const recsys::SparseInput& input : signature.sparse) {
      request.sparse.push_back({input.name, BytesOf(lengths), BytesOf(ids),
                                input.weighted ? BytesOf(weights) : std::string_view()});
    }

    const recsys::Outputs outputs = model.Predict(request);
    for (std::size_t i = 0; i < outputs.values.size(); ++i) {
      std::cout << signature.outputs[i].name << ":";
      for (const float value : outputs.values[i]) std::cout << " " << value;
      if (!outputs.integers.empty()) {
        for (const std::int64_t value : outputs.integers[i]) std::cout << " " << value;
      }
      std::cout << "\n";
    }
  } catch (const recsys::Error& error) {
    std::cerr << "predict: " << error.what() << "\n";
    return 1;
  }
}
