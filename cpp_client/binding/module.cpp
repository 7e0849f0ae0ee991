// serve.engine._engine: the engine as a Python module. serve/engine/_engine.pyi documents each
// name. Every method that may wait releases the GIL; the engine's threads never take it.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "binding/answered.h"
#include "binding/build.h"
#include "binding/events.h"
#include "engine/artifact/artifact_model.h"
#include "engine/engine.h"
#include "engine/settings/read_settings.h"
#include "recsys/error.h"

namespace py = pybind11;

namespace recsys {
namespace {

using WithoutLock = py::call_guard<py::gil_scoped_release>;
using Pem = std::tuple<std::string, std::string, std::optional<std::string>>;

/// Drops its reference without the GIL: destroying the last one joins threads and frees memory.
template <typename T>
class Owned {
 public:
  explicit Owned(std::shared_ptr<T> value) : value_(std::move(value)) { live().push_back(value_); }
  ~Owned() {
    const py::gil_scoped_release released;
    value_.reset();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_.get(); }
  const std::shared_ptr<T>& shared() const { return value_; }

  /// Returns all that exist; guarded by the GIL.
  static std::vector<std::weak_ptr<T>> TakeLive() { return std::exchange(live(), {}); }

 private:
  static std::vector<std::weak_ptr<T>>& live() {
    static std::vector<std::weak_ptr<T>> all;
    return all;
  }

  std::shared_ptr<T> value_;
};

using OwnedEngine = Owned<Engine>;
using OwnedVersion = Owned<Version>;

/// At the interpreter's exit: closes what was left open, so that its threads end before teardown.
void CloseAll() {
  const auto engines = OwnedEngine::TakeLive();
  const auto versions = OwnedVersion::TakeLive();
  const py::gil_scoped_release released;
  for (const auto& weak : engines) {
    if (const auto engine = weak.lock()) engine->Close(0);
  }
  for (const auto& weak : versions) {
    if (const auto version = weak.lock()) version->Close();
  }
}

std::optional<TlsPem> TlsOf(std::optional<Pem> pem) {
  if (!pem) return std::nullopt;
  auto& [certificate, key, client_ca] = *pem;
  return TlsPem{std::move(certificate), std::move(key), std::move(client_ca)};
}

py::list Take(const OwnedEngine& engine, std::size_t at_most, bool all_answers) {
  std::vector<Event> events;
  {
    const py::gil_scoped_release released;
    events = engine->Take(at_most, all_answers);
  }
  py::list list;
  for (const Event& event : events) list.append(TupleOf(event));
  return list;
}

std::unique_ptr<OwnedVersion> Open(const OwnedEngine& engine, const std::string& path,
                                   const std::string& settings, std::vector<std::string> warm_up) {
  std::shared_ptr<Version> version;
  {
    const py::gil_scoped_release released;
    version = engine->Open(path, ReadSettings<VersionSettings>(settings), std::move(warm_up));
  }
  return std::make_unique<OwnedVersion>(std::move(version));
}

void Publish(const OwnedEngine& engine, const std::string& table,
             const std::vector<const OwnedVersion*>& versions) {
  std::vector<std::shared_ptr<Version>> shared;
  for (const OwnedVersion* version : versions) shared.push_back(version->shared());
  const py::gil_scoped_release released;
  engine->Publish(ReadSettings<RouteSpec>(table), shared);
  shared.clear();
}

/// Defines _engine.Error, and translates recsys::Error to it.
void RegisterError(py::module_& module) {
  static PyObject* type =
      PyErr_NewExceptionWithDoc("serve.engine._engine.Error",
                                "An error of the engine, with a readable text.", nullptr, nullptr);
  if (type == nullptr) throw py::error_already_set();
  module.add_object("Error", py::reinterpret_borrow<py::object>(type));
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const auto* full = dynamic_cast<const QueueFullError*>(&error);
      const py::object made = py::reinterpret_borrow<py::object>(type)(error.what());
      made.attr("kind") = KindName(error.kind());
      made.attr("retry_after_ms") = full == nullptr ? 0 : full->retry_after_ms();
      PyErr_SetObject(type, made.ptr());
    }
  });
}

void DefineVersion(py::module_& module) {
  py::class_<OwnedVersion>(module, "Version", py::module_local())
      .def(
          "description", [](const OwnedVersion& self) { return self->Description(); },
          WithoutLock())
      .def(
          "apply_delta",
          [](const OwnedVersion& self, const std::string& path) { return self->ApplyDelta(path); },
          WithoutLock(), py::arg("path"))
      .def(
          "num_owned",
          [](const OwnedVersion& self, const std::string& table, const std::string& ids) {
            return self->NumOwned(table, ids);
          },
          WithoutLock(), py::arg("table"), py::arg("ids"))
      .def(
          "totals", [](const OwnedVersion& self) { return self->Totals(); }, WithoutLock())
      .def(
          "close", [](const OwnedVersion& self) { self->Close(); }, WithoutLock());
}

void DefinePort(py::class_<OwnedEngine>& engine) {
  engine
      .def(
          "listen",
          [](const OwnedEngine& self, const std::string& settings,
             const std::vector<std::string>& calls, const std::vector<std::string>& streams,
             std::optional<Pem> tls) {
            return self->Listen(ReadSettings<PortSettings>(settings), calls, streams,
                                TlsOf(std::move(tls)));
          },
          WithoutLock(), py::arg("settings"), py::arg("calls"), py::arg("streams"), py::arg("tls"))
      .def(
          "listen_http",
          [](const OwnedEngine& self, int file, std::int64_t max_json_bytes) {
            self->ListenHttp(file, max_json_bytes);
          },
          WithoutLock(), py::arg("file"), py::arg("max_json_bytes"))
      .def(
          "release_connection", [](const OwnedEngine& self) { self->ReleaseConnection(); },
          WithoutLock())
      .def(
          "set_tls",
          [](const OwnedEngine& self, std::string certificate, std::string key,
             std::optional<std::string> client_ca) {
            self->SetTls({std::move(certificate), std::move(key), std::move(client_ca)});
          },
          WithoutLock(), py::arg("certificate"), py::arg("key"), py::arg("client_ca"))
      .def(
          "set_health",
          [](const OwnedEngine& self, const std::string& service, bool is_serving) {
            self->SetHealth(service, is_serving);
          },
          WithoutLock(), py::arg("service"), py::arg("is_serving"))
      .def(
          "answer",
          [](const OwnedEngine& self, std::int64_t call, std::string message) {
            self->Answer(call, std::move(message));
          },
          WithoutLock(), py::arg("call"), py::arg("message"))
      .def(
          "fail",
          [](const OwnedEngine& self, std::int64_t call, int code, std::string text,
             std::int64_t retry_after_ms) {
            self->Fail(call, {static_cast<StatusCode>(code), std::move(text), retry_after_ms});
          },
          WithoutLock(), py::arg("call"), py::arg("code"), py::arg("text"),
          py::arg("retry_after_ms") = 0);
}

void DefineEngine(py::module_& module) {
  py::class_<OwnedEngine> engine(module, "Engine", py::module_local());
  engine
      .def(py::init([](const std::string& settings) {
             std::shared_ptr<Engine> made;
             {
               const py::gil_scoped_release released;
               made =
                   std::make_shared<Engine>(ReadSettings<EngineSettings>(settings), OpenArtifact);
             }
             return std::make_unique<OwnedEngine>(std::move(made));
           }),
           py::arg("settings"))
      .def("fileno", [](const OwnedEngine& self) { return self->event_fd(); })
      .def("take", Take, py::arg("at_most"), py::arg("all_answers") = false)
      .def("open", Open, py::arg("path"), py::arg("settings"), py::arg("warm_up"))
      .def("publish", Publish, py::arg("table"), py::arg("versions"))
      .def(
          "withdraw",
          [](const OwnedEngine& self, const std::string& model) { self->Withdraw(model); },
          WithoutLock(), py::arg("model"))
      .def(
          "submit",
          [](const OwnedEngine& self, std::int64_t ticket, const std::string& options,
             std::string message) {
            self->Submit(ticket, ReadSettings<SubmitOptions>(options), std::move(message));
          },
          WithoutLock(), py::arg("ticket"), py::arg("options"), py::arg("message"))
      .def(
          "cancel", [](const OwnedEngine& self, std::int64_t ticket) { self->Cancel(ticket); },
          WithoutLock(), py::arg("ticket"))
      .def(
          "counts", [](const OwnedEngine& self) { return self->Counts(); }, WithoutLock())
      .def("num_active", [](const OwnedEngine& self) { return self->num_active(); })
      .def(
          "drain", [](const OwnedEngine& self) { self->Drain(); }, WithoutLock())
      .def(
          "wait_until_idle",
          [](const OwnedEngine& self, double timeout_s) { return self->WaitUntilIdle(timeout_s); },
          WithoutLock(), py::arg("timeout_s"))
      .def(
          "close", [](const OwnedEngine& self, double grace_s) { return self->Close(grace_s); },
          WithoutLock(), py::arg("grace_s"));
  DefinePort(engine);
}

}  // namespace
}  // namespace recsys

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The native engine; serve.engine.native is its only user.";
  module.attr("BUILD") = std::string(recsys::kBuild);
  recsys::RegisterError(module);
  recsys::DefineVersion(module);
  recsys::DefineEngine(module);
  recsys::DefineAnswered(module);
  py::module_::import("atexit").attr("register")(py::cpp_function(recsys::CloseAll));
}
