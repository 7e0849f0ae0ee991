// The client at the end of a pipe: one JSON object a line in, one out. For tests in Python.
#include <future>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "recsys/client.h"

namespace {

using nlohmann::json;
using recsys::Client;
using recsys::ClientError;
using recsys::ClientRequest;
using recsys::ClientResponse;

json ErrorOf(const ClientError& error) {
  json found{{"code", recsys::StatusName(error.code())},
             {"message", error.message()},
             {"num_attempts", error.num_attempts()}};
  if (error.retry_after_ms()) found["retry_after_ms"] = *error.retry_after_ms();
  return {{"error", found}};
}

json AnswerOf(const ClientResponse& response) {
  json outputs = json::object();
  for (const auto& output : response.outputs) {
    outputs[output.name] = {{"dims", output.dims}, {"values", output.values}};
    if (output.type == recsys::OutputType::kInt64) outputs[output.name]["values"] = output.integers;
  }
  return {{"model", response.model},
          {"version", response.version},
          {"num_attempts", response.num_attempts},
          {"outputs", outputs}};
}

std::vector<float> Flat(const json& rows) {
  std::vector<float> values;
  for (const json& row : rows) {
    for (const json& value : row) values.push_back(value.get<float>());
  }
  return values;
}

/// A part of a request; empty where it is not there.
const json& PartOf(const json& from, const char* name) {
  static const json none = json::object();
  return from.contains(name) ? from[name] : none;
}

/// Whether bags, or one bag, hold texts.
bool HasTexts(const json& ids) {
  if (ids.is_string()) return true;
  for (const json& part : ids) {
    if ((part.is_array() || part.is_string()) && HasTexts(part)) return true;
  }
  return false;
}

ClientRequest RequestOf(const json& from) {
  ClientRequest request(from.at("num_rows").get<std::int64_t>());
  const json& weights = PartOf(from, "weights");
  for (const auto& [name, rows] : PartOf(from, "dense").items()) {
    request.AddDense(name, Flat(rows));
  }
  for (const auto& [name, rows] : PartOf(from, "sparse").items()) {
    const auto own = weights.value(name, std::vector<std::vector<float>>());
    if (HasTexts(rows)) {
      request.AddTexts(name, rows.get<std::vector<std::vector<std::string>>>(), own);
    } else {
      request.AddSparse(name, rows.get<std::vector<std::vector<std::int64_t>>>(), own);
    }
  }
  for (const auto& [name, rows] : PartOf(from, "context_dense").items()) {
    request.AddContextDense(name, Flat(rows));
  }
  for (const auto& [name, ids] : PartOf(from, "context_sparse").items()) {
    const auto rows = weights.value(name, std::vector<std::vector<float>>());
    const std::vector<float> own = rows.empty() ? std::vector<float>() : rows[0];
    if (HasTexts(ids)) {
      const auto texts = ids.get<std::vector<std::string>>();
      const std::vector<std::string_view> views(texts.begin(), texts.end());
      request.AddContextTexts(name, views, own);
    } else {
      request.AddContextSparse(name, ids.get<std::vector<std::int64_t>>(), own);
    }
  }
  request.SetRequestId(from.value("request_id", ""));
  return request;
}

recsys::ClientOptions OptionsOf(const json& from) {
  recsys::ClientOptions options;
  options.timeout_s = from.value("timeout_s", 30.0);
  options.model = from.value("model", "");
  options.version = from.value("version", "");
  options.num_connections = from.value("num_connections", 1);
  options.retries.max_attempts = from.value("max_attempts", 3);
  if (from.contains("tls")) {
    const json& tls = from["tls"];
    options.tls = recsys::ClientTls{tls.value("ca", ""), tls.value("certificate", ""),
                                    tls.value("key", ""), ""};
  }
  return options;
}

json Streamed(Client* client, const json& requests) {
  std::mutex mutex;
  json answers = json::object();
  const auto stream =
      client->Stream([&](const std::string& request_id, const recsys::ClientResult& result) {
        const std::lock_guard<std::mutex> lock(mutex);
        answers[request_id] = result.ok() ? AnswerOf(result.response()) : ErrorOf(result.error());
      });
  for (const json& request : requests) stream->Send(RequestOf(request));
  stream->Finish();
  return {{"answers", answers}};
}

json Described(const recsys::ModelMetadata& metadata) {
  json dense = json::object(), sparse = json::object();
  for (const auto& input : metadata.signature.dense) dense[input.name] = input.width;
  for (std::size_t i = 0; i < metadata.id_limits.size(); ++i) {
    const auto& input = metadata.signature.sparse[i];
    sparse[input.name] = {{"weighted", input.weighted},
                          {"pooling", input.pooling},
                          {"strings", input.strings},
                          {"id_limit", metadata.id_limits[i].value_or(-1)}};
  }
  return {{"model", metadata.model},
          {"version", metadata.version},
          {"dense", dense},
          {"sparse", sparse}};
}

json Do(std::unique_ptr<Client>* client, const json& asked) {
  const std::string command = asked.at("command");
  if (command == "connect") {
    *client = std::make_unique<Client>(asked.at("address").get<std::string>(), OptionsOf(asked));
    return json::object();
  }
  if (command == "predict") return AnswerOf((*client)->Predict(RequestOf(asked)));
  if (command == "stream") return Streamed(client->get(), asked.at("requests"));
  if (command == "many") {
    std::vector<std::future<ClientResponse>> futures;
    for (const json& request : asked.at("requests")) {
      futures.push_back((*client)->PredictFuture(RequestOf(request)));
    }
    json answers = json::array();
    for (auto& future : futures) answers.push_back(AnswerOf(future.get()));
    return {{"answers", answers}};
  }
  return Described((*client)->Metadata());
}

}  // namespace

int main() {
  std::unique_ptr<Client> client;
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = Do(&client, json::parse(line));
    } catch (const ClientError& error) {
      answer = ErrorOf(error);
    } catch (const std::exception& error) {
      answer = {{"refused", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
