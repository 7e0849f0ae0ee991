// Requests scores from a server: one request, a ranking request, and many without waiting for each.
//
//   recsys-serve ARTIFACT --port 8500
//   build/native/example_client 127.0.0.1:8500
//
// The inputs are those of the README's model, as in docs/serve/wire.md; other models need other
// names.
#include "recsys/client.h"

#include <cstdio>
#include <future>
#include <vector>

int main(int argc, char** argv) {
  try {
    recsys::ClientOptions options;
    options.timeout_s = 0.5;
    options.num_connections = 2;
    recsys::Client client(argc > 1 ? argv[1] : "127.0.0.1:8500", options);

    recsys::ClientRequest request(/*num_rows=*/1);
    request.AddDense("dense_features", std::vector<float>{0.1F, 0.2F, 0.3F})
        .AddSparse("user", {{7}})
        .AddSparse("item", {{3}})
        .AddSparse("recent_items", {{5, 9}})
        .AddSparse("category", {{1}})
        .AddSparse("hour", {{23}});
    std::printf("score %.4f\n", client.Predict(request).output("score").values[0]);

    // Two candidates for one user, whose inputs are sent and looked up once.
    recsys::ClientRequest ranking(/*num_rows=*/2);
    ranking.AddDense("dense_features", std::vector<float>{0.1F, 0.2F, 0.3F, 0.3F, 0.1F, 0.2F})
        .AddSparse("item", {{3}, {8}})
        .AddSparse("category", {{1}, {4}})
        .AddSparse("hour", {{23}, {23}})
        .AddContextSparse("user", std::vector<std::int64_t>{7})
        .AddContextSparse("recent_items", std::vector<std::int64_t>{5, 9});
    for (const float score : client.Predict(ranking).output("score").values) {
      std::printf("candidate %.4f\n", score);
    }

    std::vector<std::future<recsys::ClientResponse>> answers;
    for (int i = 0; i < 100; ++i) answers.push_back(client.PredictFuture(request));
    for (auto& answer : answers) answer.get();
    std::puts("100 more were answered");
    return 0;
  } catch (const recsys::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
