#include "trireme/plan/memory_answer_json.h"

namespace trireme {
namespace {

Json number_or_null(const auto& value) {
  return value ? Json(*value) : Json();
}

Json error_json(const MemoryError& error) {
  Json json{{"kind", name_of(error.kind)},
            {"space", error.space == MemorySpace::host ? "host" : "device"},
            {"message", as_utf8(error.message)},
            {"asked_bytes", number_or_null(error.asked)},
            {"capacity_bytes", number_or_null(error.capacity)},
            {"free_bytes", number_or_null(error.free)},
            {"allocated_bytes", number_or_null(error.allocated)},
            {"unallocated_bytes", number_or_null(error.unallocated)},
            {"private_pools_bytes", number_or_null(error.private_pools)},
            {"allowed_bytes", number_or_null(error.allowed)},
            {"process_bytes", number_or_null(error.process)},
            {"others_bytes", number_or_null(error.others)},
            {"gpu", number_or_null(error.gpu)},
            {"rank", number_or_null(error.rank)},
            {"category", error.category ? Json(name_of(*error.category)) : Json()},
            {"asked_by", nullptr}};
  if (error.asked_by)
    json["asked_by"] = {{"file", as_utf8(error.asked_by->file)},
                        {"line", error.asked_by->line},
                        {"function", as_utf8(error.asked_by->function)},
                        {"code", as_utf8(error.asked_by->code)}};
  return json;
}

Json categories_json(const std::vector<CategoryBytes>& categories) {
  Json json = Json::array();
  for (const CategoryBytes& each : categories)
    json.push_back({{"category", name_of(each.category)}, {"bytes", each.bytes}});
  return json;
}

Json memory_limits_json(const TensorLimits& limits) {
  return {{"device_bytes", limits.device_bytes},
          {"host_bytes", limits.host_bytes > 0 ? Json(limits.host_bytes) : Json()},
          {"machine_ranks", limits.machine_ranks}};
}

Json step_cost_json(const StepCost& cost) {
  return {{"device_bytes", cost.device_bytes},
          {"host_bytes", cost.host_bytes},
          {"seconds", cost.seconds},
          {"tokens_per_second", cost.tokens_per_second}};
}

Json set_json(const MemoryChanges& changes, const MemoryChangeSet& set) {
  Json listed = Json::array();
  for (const MemoryChange& change : set.changes)
    listed.push_back({{"kind", name_of(change.kind)}, {"flags", change.flags}, {"note", change.note}});
  return {{"flags", set.flags(changes.step)},
          {"changes", std::move(listed)},
          {"deepspeed", set.deepspeed(changes.step)},
          {"trainer", set.trainer(changes.step)},
          {"trireme_alone", set.trireme_alone()},
          {"cost", step_cost_json(set.cost)},
          {"saved_device_bytes", changes.cost.device_bytes - set.cost.device_bytes},
          {"saved_host_bytes", changes.cost.host_bytes - set.cost.host_bytes},
          {"added_seconds", set.cost.seconds - changes.cost.seconds},
          {"sequence_ranks", set.step.sequence_ranks()},
          {"accumulation", set.step.inputs.micro_batches}};
}

}  // namespace

Json to_json(const MemoryAnswer& answer) {
  Json causes = Json::array();
  for (const MemoryErrorCause& cause : answer.causes)
    causes.push_back({{"kind", name_of(cause.kind)}, {"what", cause.what}, {"mend", cause.mend}});
  const MemoryChanges& changes = answer.changes;
  Json sets = Json::array();
  for (const MemoryChangeSet& set : changes.sets) sets.push_back(set_json(changes, set));
  return {{"fits", changes.fits()},
          {"error", answer.error ? error_json(*answer.error) : Json()},
          {"causes", std::move(causes)},
          {"memory",
           {{"limits", memory_limits_json(changes.limits)},
            {"fullest_moment", answer.shortage.fullest_moment},
            {"device", categories_json(answer.shortage.device)},
            {"host", categories_json(answer.shortage.host)}}},
          {"cost", step_cost_json(changes.cost)},
          {"sets", std::move(sets)},
          {"nearest", changes.nearest ? set_json(changes, *changes.nearest) : Json()},
          {"ranks_needed", changes.ranks_needed > 0 ? Json(changes.ranks_needed) : Json()},
          {"longest_tokens", changes.longest_tokens > 0 ? Json(changes.longest_tokens) : Json()}};
}

}  // namespace trireme
