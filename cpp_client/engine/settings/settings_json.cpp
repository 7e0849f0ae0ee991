#include "engine/settings/json_fields.h"
#include "engine/settings/settings.h"

namespace recsys {
namespace {

void Read(JsonFields* fields, BatchLimits* limits) {
  fields->Read("max_batch_rows", &limits->max_batch_rows);
  fields->Read("max_batch_ids", &limits->max_batch_ids);
  fields->Read("max_request_rows", &limits->max_request_rows);
  fields->Read("max_request_ids", &limits->max_request_ids);
  fields->Read("max_queue_rows", &limits->max_queue_rows);
  fields->Read("max_queue_ids", &limits->max_queue_ids);
  fields->Read("max_queue_bytes", &limits->max_queue_bytes);
  fields->Read("max_delay_us", &limits->max_delay_us);
  fields->Read("priority_window_us", &limits->priority_window_us);
}

void Read(JsonFields* fields, ConnectionLimits* limits) {
  fields->Read("max_connections", &limits->max_connections);
  fields->Read("max_message_bytes", &limits->max_message_bytes);
  fields->Read("max_concurrent_streams", &limits->max_concurrent_streams);
  fields->Read("max_stream_requests", &limits->max_stream_requests);
  fields->Read("max_connection_idle_s", &limits->max_connection_idle_s);
  fields->Read("max_connection_age_s", &limits->max_connection_age_s);
  fields->Read("handshake_timeout_s", &limits->handshake_timeout_s);
  fields->Read("first_call_timeout_s", &limits->first_call_timeout_s);
  fields->Read("message_timeout_s", &limits->message_timeout_s);
  fields->Read("keepalive_s", &limits->keepalive_s);
  fields->Read("keepalive_timeout_s", &limits->keepalive_timeout_s);
  fields->Read("max_header_bytes", &limits->max_header_bytes);
  fields->Read("max_connection_bytes", &limits->max_connection_bytes);
  fields->Read("max_port_bytes", &limits->max_port_bytes);
  fields->Read("max_resets_per_s", &limits->max_resets_per_s);
  fields->Read("max_control_frames_per_s", &limits->max_control_frames_per_s);
}

void Read(JsonFields* fields, RingLimits* limits) {
  fields->Read("max_entries", &limits->max_entries);
  fields->Read("max_bytes", &limits->max_bytes);
}

template <typename Part>
void ReadPart(JsonFields* fields, const char* name, Part* part) {
  std::optional<JsonFields> inner = fields->Object(name);
  if (!inner) return;
  Read(&*inner, part);
  inner->Finish();
}

EndedRecords EndedRecordsOf(const std::string& text) {
  if (text == "none") return EndedRecords::kNone;
  if (text == "errors") return EndedRecords::kErrors;
  if (text == "all") return EndedRecords::kAll;
  throw Error(ErrorKind::kConfig, "ended: got " + Repr(text) + ", expected none, errors or all");
}

}  // namespace

EngineSettings EngineSettingsOf(std::string_view json) {
  EngineSettings settings;
  JsonFields fields(json, "the engine's settings");
  std::string ended = "errors";
  fields.Read("ended", &ended);
  settings.ended = EndedRecordsOf(ended);
  fields.Read("trace_share", &settings.trace_share);
  fields.Read("capture_share", &settings.capture_share);
  fields.Read("num_processors", &settings.num_processors);
  ReadPart(&fields, "ended_ring", &settings.ended_ring);
  ReadPart(&fields, "captured_ring", &settings.captured_ring);
  ReadPart(&fields, "shadow_ring", &settings.shadow_ring);
  ReadPart(&fields, "log_ring", &settings.log_ring);
  ReadPart(&fields, "call_ring", &settings.call_ring);
  fields.Finish();
  settings.Check();
  return settings;
}

PortSettings PortSettingsOf(std::string_view json) {
  PortSettings settings;
  JsonFields fields(json, "the port's settings");
  fields.Read("host", &settings.host);
  std::int64_t port = settings.port, num_threads = settings.num_threads;
  fields.Read("port", &port);
  fields.Read("num_threads", &num_threads);
  settings.port = fields.Int("port", port);
  settings.num_threads = fields.Int("num_threads", num_threads);
  ReadPart(&fields, "connections", &settings.connections);
  fields.Finish();
  settings.Check();
  return settings;
}

VersionSettings VersionSettingsOf(std::string_view json) {
  VersionSettings settings;
  JsonFields fields(json, "the version's settings");
  fields.Read("name", &settings.name);
  fields.Read("version", &settings.version);
  fields.Read("target", &settings.target);
  fields.Read("verify_checksums", &settings.verify_checksums);
  fields.Read("copy_rows", &settings.copy_rows);
  fields.Read("lock_rows", &settings.lock_rows);
  fields.Read("numa", &settings.numa);
  fields.Read("random_access", &settings.random_access);
  fields.Read("allow_non_finite", &settings.allow_non_finite);
  ReadPart(&fields, "limits", &settings.limits);
  fields.Read("num_executors", &settings.num_executors);
  fields.Read("cpus", &settings.cpus);
  fields.Finish();
  settings.Check();
  return settings;
}

RouteSpec RouteSpecOf(std::string_view json) {
  RouteSpec spec;
  JsonFields fields(json, "the route table");
  fields.Read("model", &spec.model);
  fields.Read("serving", &spec.serving);
  fields.Read("canary", &spec.canary);
  fields.Read("canary_share", &spec.canary_share);
  fields.Read("key_feature", &spec.key_feature);
  fields.Read("key_header", &spec.key_header);
  fields.Read("shadow", &spec.shadow);
  fields.Read("shadow_share", &spec.shadow_share);
  fields.Read("loading", &spec.loading);
  fields.Read("is_unloaded", &spec.is_unloaded);
  fields.Read("is_only", &spec.is_only);
  fields.Finish();
  return spec;
}

SubmitOptions SubmitOptionsOf(std::string_view json) {
  SubmitOptions options;
  JsonFields fields(json, "the request's options");
  fields.Read("form", &options.form);
  fields.Read("protocol", &options.protocol);
  fields.Read("remaining_s", &options.remaining_s);
  fields.Read("headers", &options.headers);
  fields.Read("drew_version", &options.drew_version);
  fields.Read("client", &options.client);
  fields.Finish();
  return options;
}

}  // namespace recsys
