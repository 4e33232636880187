#include "trireme/plan/hardware_profile.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr double kMost = 1e30;

double between(double x, double x0, double y0, double x1, double y1) {
  if (x1 == x0) return y0;
  const double share = std::clamp((std::log(x) - std::log(x0)) / (std::log(x1) - std::log(x0)), 0.0, 1.0);
  return y0 + share * (y1 - y0);
}

struct Neighbours {
  const RatePoint *below = nullptr, *above = nullptr;
};

// The nearest on both sides of `x` of the points that count; where there are none on one side, the other's.
template <typename Counts>
Neighbours neighbours(const std::vector<RatePoint>& points, double RatePoint::*coordinate, double x,
                      const Counts& counts) {
  Neighbours nearest;
  for (const RatePoint& p : points) {
    if (!counts(p)) continue;
    if (p.*coordinate <= x && (!nearest.below || p.*coordinate > nearest.below->*coordinate))
      nearest.below = &p;
    if (p.*coordinate >= x && (!nearest.above || p.*coordinate < nearest.above->*coordinate))
      nearest.above = &p;
  }
  if (nearest.below == nullptr) nearest.below = nearest.above;
  if (nearest.above == nullptr) nearest.above = nearest.below;
  return nearest;
}

Json link_json(const LinkSpeed& link) {
  return {{"latency_seconds", link.latency_seconds}, {"bytes_per_second", link.bytes_per_second}};
}

LinkSpeed link_from(const Json& json, const std::string& key, const std::string& origin) {
  if (find_field(json, key, origin) == nullptr) return {};
  const Json& link = object_value(json, key, origin);
  return {finite_number(link, "latency_seconds", 0, 1e3, cat(origin, ": ", key)),
          finite_number(link, "bytes_per_second", 0, kMost, cat(origin, ": ", key))};
}

Json rates_json(const Rates& rates) {
  Json json = Json::object();
  for (const auto& [kind, table] : rates) {
    Json points = Json::array();
    for (const RatePoint& p : table.points)
      points.push_back({{"size", p.size}, {"width", p.width}, {"per_second", p.per_second}});
    json[name_of(kind)] = std::move(points);
  }
  return json;
}

Rates rates_from(const Json& json, const std::string& key, const std::string& origin) {
  Rates rates;
  const std::string where = cat(origin, ": ", key);
  const Json& kinds = object_value(json, key, origin);
  for (const auto& [kind, name] : enum_names(WorkKind{})) {
    const std::string of_kind = cat(where, ": ", name);
    for (const Json& point : array_value(kinds, std::string(name), where))
      rates[kind].points.push_back({finite_number(point, "size", 0, kMost, of_kind),
                                    finite_number(point, "width", 0, kMost, of_kind),
                                    finite_number(point, "per_second", 1e-9, kMost, of_kind)});
    const std::vector<RatePoint>& points = rates[kind].points;
    if (points.empty()) throw DataError(cat(of_kind, " has no rate; expected one or more"));
    for (const auto& [coordinate, word] : {std::pair(&RatePoint::size, "size"), {&RatePoint::width, "width"}})
      if (const auto [least, most] = std::ranges::minmax(points, {}, coordinate);
          least.*coordinate == 0 && most.*coordinate > 0)
        throw DataError(cat(of_kind, ": a point has ", word,
                            " 0, and another has not; expected numbers above 0, "
                            "for rates between points follow their logarithm"));
  }
  return rates;
}

}  // namespace

double RateTable::per_second(double size, double width) const {
  TRIREME_ASSERT(!points.empty(), "a table of rates is empty");
  const auto at_width = [&](double table_width) {
    const auto [below, above] = neighbours(points, &RatePoint::size, size,
                                           [&](const RatePoint& p) { return p.width == table_width; });
    return between(size, below->size, below->per_second, above->size, above->per_second);
  };
  const auto [narrower, wider] =
      neighbours(points, &RatePoint::width, width, [](const RatePoint&) { return true; });
  return between(width, narrower->width, at_width(narrower->width), wider->width, at_width(wider->width));
}

double LinkSpeed::seconds(double calls, double bytes) const {
  if (bytes <= 0) return 0;
  TRIREME_ASSERT(bytes_per_second > 0, "an exchange over a link that the profile does not have");
  return calls * latency_seconds + bytes / bytes_per_second;
}

Json to_json(const FigureSource& source) {
  return {{"figure", source.figure}, {"origin", name_of(source.origin)}, {"source", source.source}};
}

Json to_json(const HardwareProfile& profile) {
  Json sources = Json::array();
  for (const FigureSource& source : profile.sources) sources.push_back(to_json(source));
  return {{"name", profile.name},
          {"description", profile.description},
          {"is_gpu", profile.is_gpu},
          {"devices_per_machine", profile.devices_per_machine},
          {"memory_bytes", profile.memory_bytes},
          {"host_memory_bytes", profile.host_memory_bytes},
          {"outside_tensors_bytes", profile.outside_tensors_bytes},
          {"fragments_share", profile.fragments_share},
          {"peer_buffers_bytes", profile.peer_buffers_bytes},
          {"peak_flops_16_bit", profile.peak_flops_16_bit},
          {"peak_flops_32_bit", profile.peak_flops_32_bit},
          {"rates_16_bit", rates_json(profile.rates_16_bit)},
          {"rates_32_bit", rates_json(profile.rates_32_bit)},
          {"within_machine", link_json(profile.within_machine)},
          {"across_machines", link_json(profile.across_machines)},
          {"to_host", link_json(profile.to_host)},
          {"disk_read", link_json(profile.disk_read)},
          {"disk_write", link_json(profile.disk_write)},
          {"host_optimizer_per_second", profile.host_optimizer_per_second},
          {"micro_batch_seconds", profile.micro_batch_seconds},
          {"step_seconds", profile.step_seconds},
          {"threads", profile.threads},
          {"bf16_products", profile.bf16_products},
          {"bf16_attention", profile.bf16_attention},
          {"flash4", profile.flash4},
          {"time_error", profile.time_error_share},
          {"sources", std::move(sources)}};
}

HardwareProfile hardware_profile_from_json(const Json& json, const std::string& origin) {
  HardwareProfile profile;
  profile.name = text_value(json, "name", origin);
  profile.description = text_value(json, "description", origin, profile.name);
  profile.is_gpu = true_or_false(json, "is_gpu", origin);
  profile.devices_per_machine =
      static_cast<int>(whole_number(json, "devices_per_machine", {1, 1 << 20}, origin));
  profile.memory_bytes = whole_number(json, "memory_bytes", {1}, origin);
  profile.host_memory_bytes = whole_number(json, "host_memory_bytes", {0}, origin, 0);
  profile.outside_tensors_bytes = whole_number(json, "outside_tensors_bytes", {0}, origin, 0);
  profile.fragments_share = finite_number(json, "fragments_share", 0, 1, origin, 0);
  profile.peer_buffers_bytes = whole_number(json, "peer_buffers_bytes", {0}, origin, 0);
  profile.peak_flops_16_bit = finite_number(json, "peak_flops_16_bit", 1, kMost, origin);
  profile.peak_flops_32_bit = finite_number(json, "peak_flops_32_bit", 1, kMost, origin);
  profile.rates_16_bit = rates_from(json, "rates_16_bit", origin);
  profile.rates_32_bit = rates_from(json, "rates_32_bit", origin);
  profile.within_machine = link_from(json, "within_machine", origin);
  profile.across_machines = link_from(json, "across_machines", origin);
  profile.to_host = link_from(json, "to_host", origin);
  profile.disk_read = link_from(json, "disk_read", origin);
  profile.disk_write = link_from(json, "disk_write", origin);
  profile.host_optimizer_per_second = finite_number(json, "host_optimizer_per_second", 0, kMost, origin, 0);
  profile.micro_batch_seconds = finite_number(json, "micro_batch_seconds", 0, 1e3, origin, 0);
  profile.step_seconds = finite_number(json, "step_seconds", 0, 1e3, origin, 0);
  profile.threads = static_cast<int>(whole_number(json, "threads", {0, 1 << 20}, origin, 0));
  profile.bf16_products = true_or_false(json, "bf16_products", origin, true);
  profile.bf16_attention = true_or_false(json, "bf16_attention", origin, true);
  profile.flash4 = true_or_false(json, "flash4", origin, false);
  profile.time_error_share = finite_number(json, "time_error", 0, 10, origin, profile.time_error_share);
  if (find_field(json, "sources", origin) != nullptr)
    for (const Json& source : array_value(json, "sources", origin)) {
      const std::string of = cat(origin, ": sources");
      const std::string name = text_value(source, "origin", of);
      const auto figure_origin = value_named<FigureOrigin>(name);
      if (!figure_origin)
        throw DataError(
            cat(of, ": origin is '", quotation(name), "'; expected published, measured or estimated"));
      profile.sources.push_back(
          {text_value(source, "figure", of), *figure_origin, text_value(source, "source", of)});
    }
  return profile;
}

}  // namespace trireme
