#include "trireme/plan/plan_html.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/plan/html_charts.h"
#include "trireme/plan/html_text.h"
#include "trireme/plan/plan_files.h"
#include "trireme/plan/plan_html_style.h"
#include "trireme/plan/plan_text.h"

namespace trireme {
namespace {

std::string spaced(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string fact(const std::string& name, const std::string& value) {
  return cat("<div><dt>", name, "</dt><dd>", value, "</dd></div>\n");
}

// Cells are HTML; the first is the head of its row.
std::string table_row(const std::vector<std::string>& cells, const std::vector<const char*>& classes) {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i)
    row +=
        cat(i == 0 ? "<th scope=\"row\"" : "<td", *classes[i] != 0 ? cat(" class=\"", classes[i], "\"") : "",
            ">", cells[i], i == 0 ? "</th>" : "</td>");
  return row + "</tr>\n";
}

std::string table(const std::string& caption, const std::vector<std::string>& heads,
                  const std::vector<const char*>& classes,
                  const std::vector<std::vector<std::string>>& rows) {
  std::string html = cat("<div class=\"wide\"><table>\n<caption>", caption, "</caption>\n<thead><tr>");
  for (size_t i = 0; i < heads.size(); ++i)
    html += cat("<th scope=\"col\"", *classes[i] != 0 ? cat(" class=\"", classes[i], "\"") : "", ">",
                heads[i], "</th>");
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) html += table_row(row, classes);
  return html + "</tbody></table></div>\n";
}

std::vector<BarSegment> segments_of(const MemoryBytes& bytes, int64_t times = 1) {
  std::vector<BarSegment> segments;
  for (const MemoryCategory category : kAllMemoryCategories)
    if (bytes[category] > 0)
      segments.push_back(
          {name_of(category), static_cast<double>(bytes[category]) * static_cast<double>(times)});
  return segments;
}

int64_t devices_of_machine(const PlanRequest& request, const Planned& planned) {
  return request.hardware.machine_devices(planned.configuration.ranks());
}

std::string device_bar(const PlanRequest& request, const Planned& planned) {
  std::vector<BarSegment> segments = segments_of(planned.memory.forecast.fullest.bytes);
  segments.push_back({"beside tensors", static_cast<double>(planned.memory.beside_tensors_bytes()), true});
  return html_bar(segments, static_cast<double>(request.hardware.memory_bytes),
                  static_cast<double>(planned.memory.limits.device_bytes));
}

std::string host_bar(const PlanRequest& request, const Planned& planned) {
  const PlannedMemory& memory = planned.memory;
  if (memory.host_bytes == 0) return "";
  const int64_t whole = memory.limits.host_bytes > 0 ? request.hardware.host_memory_bytes : memory.host_bytes;
  return html_bar(segments_of(memory.forecast.host, devices_of_machine(request, planned)),
                  static_cast<double>(whole), static_cast<double>(memory.limits.host_bytes));
}

std::string over_text(int64_t bytes, int64_t limit_bytes) {
  return bytes <= limit_bytes || limit_bytes == 0 ? "" : " <span class=\"over\">over</span>";
}

std::string memory_cell(const PlanRequest& request, const Planned& planned) {
  const PlannedMemory& memory = planned.memory;
  std::string html =
      cat(html_bytes(memory.device_bytes), over_text(memory.device_bytes, memory.limits.device_bytes),
          device_bar(request, planned));
  if (memory.host_bytes > 0)
    html += cat("host ", html_bytes(memory.host_bytes),
                over_text(memory.host_bytes, memory.limits.host_bytes), host_bar(request, planned));
  return html;
}

std::string memory_section(const PlanRequest& request, const Planned& planned) {
  const PlannedMemory& memory = planned.memory;
  const std::string device = request.hardware.device_noun();
  std::string html = cat(
      "<h2>Memory</h2>\n<p>Each ", device, ": ", html_bytes(memory.device_bytes), " of ",
      html_bytes(request.hardware.memory_bytes), over_text(memory.device_bytes, memory.limits.device_bytes),
      ". The bar is of the moment when it is fullest; the dashed line is what a plan may fill, ",
      html_bytes(memory.limits.device_bytes), ".</p>\n", device_bar(request, planned));
  const bool has_host = memory.host_bytes > 0;
  if (has_host)
    html += cat("<p>The host of each machine: ", html_bytes(memory.host_bytes),
                memory.limits.host_bytes > 0 ? cat(" of ", html_bytes(request.hardware.host_memory_bytes),
                                                   over_text(memory.host_bytes, memory.limits.host_bytes))
                                             : std::string("; the profile does not say what there is"),
                ", for ", html_count(devices_of_machine(request, planned)), " ", device, "s.</p>\n",
                host_bar(request, planned));
  std::vector<std::vector<std::string>> rows;
  const MemoryForecast& forecast = memory.forecast;
  for (const MemoryCategory category : kAllMemoryCategories) {
    if (forecast.peak[category] + forecast.host[category] == 0) continue;
    rows.push_back({name_of(category), html_bytes(forecast.fullest.bytes[category]),
                    html_bytes(forecast.peak[category])});
    if (has_host) rows.back().push_back(html_bytes(forecast.host[category]));
  }
  rows.push_back({"all tensors", html_bytes(forecast.peak_total_bytes), ""});
  rows.push_back(
      {"beside tensors: context, libraries, fragments", html_bytes(memory.beside_tensors_bytes()), ""});
  std::vector<std::string> heads{"category", "when fullest", "at its own peak"};
  std::vector<const char*> classes{"", "n", "n"};
  if (has_host) {
    for (size_t i = rows.size() - 2; i < rows.size(); ++i) rows[i].emplace_back("");
    heads.push_back("of the host");
    classes.push_back("n");
  }
  return html + table(cat("Bytes of the fullest ", device, " by category, as in the bar from left to right"),
                      heads, classes, rows);
}

struct TimeEntry {
  std::string name;
  double seconds = 0;
  bool waits = false;
};

std::vector<TimeEntry> time_entries(const StepTime& time) {
  std::vector<TimeEntry> entries;
  for (const KindSeconds& kind : time.compute) entries.push_back({spaced(name_of(kind.kind)), kind.seconds});
  for (const TrafficSeconds& each : time.traffic)
    entries.push_back({cat("waiting: ", spaced(name_of(each.kind))), each.waited_seconds, true});
  entries.push_back({"waiting: optimizer on the host", time.host_optimizer_waited_seconds, true});
  entries.push_back({"overhead of micro-batches and the step", time.overhead_seconds, true});
  std::erase_if(entries, [](const TimeEntry& entry) { return entry.seconds <= 0; });
  std::ranges::stable_sort(entries, [](const TimeEntry& a, const TimeEntry& b) {
    return a.waits != b.waits ? b.waits : a.seconds > b.seconds;
  });
  return entries;
}

std::string time_section(const Planned& planned) {
  const StepTime& time = planned.time;
  std::vector<BarSegment> segments;
  std::vector<std::vector<std::string>> rows;
  for (const TimeEntry& entry : time_entries(time)) {
    segments.push_back({entry.name, entry.seconds, entry.waits});
    rows.push_back({entry.name, html_seconds(entry.seconds),
                    html_bar({{entry.name, entry.seconds, entry.waits}}, time.seconds)});
  }
  return cat("<h2>A step</h2>\n<p>", html_seconds(time.seconds), ", between ",
             html_seconds(time.least_seconds), " and ", html_seconds(time.most_seconds), ", of which ",
             html_seconds(time.compute_seconds), " is compute. What is hatched is waited for.</p>\n",
             html_bar(segments, time.seconds),
             table("Seconds of a step, by kind of work and of waiting",
                   {"kind", "seconds", "share of the step"}, {"", "n", "bars"}, rows));
}

std::string runners_up_section(const PlanRequest& request, const Plan& plan) {
  if (plan.runners_up.empty()) return "";
  const auto row = [&](const std::string& change, const std::string& reason, const Planned& planned) {
    return std::vector<std::string>{change, reason, html_rate(planned.device_tokens_per_second()),
                                    html_seconds(planned.time.seconds), memory_cell(request, planned)};
  };
  std::vector<std::vector<std::string>> rows{row("<strong>the best</strong>", "", plan.best)};
  for (const RunnerUp& runner : plan.runners_up)
    rows.push_back(row(html_escaped(runner.change), html_escaped(runner.reason), runner.planned));
  return cat(
      "<h2>With another option</h2>\n",
      table("The best of each other mesh, and the plan with one other option of each kind. A solid line in a "
            "bar is where the memory ends",
            {"what changes", "why it loses", cat("tokens/s each ", request.hardware.device_noun()), "step",
             "memory"},
            {"", "", "n", "n", "bars"}, rows));
}

std::string frontier_section(const PlanRequest& request, const Plan& plan) {
  if (plan.frontier.empty()) return "";
  std::vector<ChartPoint> points;
  std::vector<std::vector<std::string>> rows;
  for (const Planned& each : plan.frontier) {
    const double rate = each.device_tokens_per_second();
    points.push_back({static_cast<double>(each.tokens()), rate, each.tokens() == plan.best.tokens()});
    rows.push_back({html_count(each.tokens()), html_rate(rate), html_rate(each.time.tokens_per_second),
                    html_seconds(each.time.seconds), html_bytes(each.memory.device_bytes),
                    html_escaped(configuration_text(each))});
  }
  const std::string device = request.hardware.device_noun(), rate_name = cat("tokens/s each ", device);
  std::string html =
      cat("<h2>Length against speed</h2>\n<p>The fastest configuration at lengths that double, up to the "
          "longest that fits: ",
          html_count(plan.longest_tokens), " tokens.",
          points.size() > 1 ? " The square is this plan's length." : "", "</p>\n<p>Rates are ",
          frontier_samples_text(plan.frontier), ".</p>\n");
  if (points.size() > 1) html += svg_chart(points, "tokens of a sample (logarithmic)", rate_name);
  return html + table("The same in numbers",
                      {"tokens", rate_name, "in all", "step", cat("memory of a ", device), "configuration"},
                      {"n", "n", "n", "n", "n", ""}, rows);
}

std::string sureness_section(const PlanRequest& request) {
  const HardwareProfile& hardware = request.hardware;
  std::vector<std::vector<std::string>> rows;
  for (const FigureSource& source : hardware.sources) {
    const std::string figure = html_escaped(source.figure), origin = name_of(source.origin),
                      text = html_escaped(source.source);
    const auto same =
        std::ranges::find_if(rows, [&](const auto& row) { return row[1] == origin && row[2] == text; });
    if (same != rows.end())
      same->front() += ", " + figure;
    else
      rows.push_back({figure, origin, text});
  }
  return cat("<h2>How sure</h2>\n<p>Times are within ", html_share(hardware.time_error_share),
             " of what is said, by estimate. Memory is the forecast that the engine itself uses.</p>\n",
             rows.empty() ? ""
                          : table(cat("Where the figures of ", html_escaped(hardware.name), " are from"),
                                  {"figure", "origin", "source"}, {"", "", ""}, rows));
}

std::string facts(const PlanRequest& request, const Plan& plan) {
  const Planned& best = plan.best;
  const StepTime& time = best.time;
  const std::string device = request.hardware.device_noun();
  std::string html =
      "<dl>\n" + fact(cat("tokens/s each ", device), html_rate(best.device_tokens_per_second())) +
      fact("tokens/s in all", html_rate(time.tokens_per_second)) + fact("step", html_seconds(time.seconds)) +
      fact("MFU", html_share(time.mfu)) +
      fact(cat("memory of each ", device), html_bytes(best.memory.device_bytes)) +
      fact("longest sample here", cat(html_count(plan.longest_tokens), " <small>tokens</small>"));
  if (request.token_budget > 0) {
    const double seconds = plan.seconds_for(request.token_budget);
    html += fact(cat(html_count(request.token_budget), " tokens take"),
                 html_data(seconds, cat(format_fixed(seconds / 3600, 1), " h"))) +
            fact(cat(device, "-hours"), html_rate(plan.device_hours_for(request.token_budget)));
  }
  if (request.target_tokens_per_second > 0)
    html += fact(cat("target of ", html_rate(request.target_tokens_per_second), " tokens/s"),
                 plan.reaches(request.target_tokens_per_second) ? "reached" : "not reached");
  return html + "</dl>\n";
}

std::string verdict(const PlanRequest& request, const Plan& plan) {
  if (plan.fits()) return "";
  return cat("<p class=\"over\">Nothing fits; this is the least over. ",
             plan.longest_tokens > 0 ? cat("At most ", html_count(plan.longest_tokens), " tokens fit. ")
                                     : "No length fits. ",
             plan.devices_needed ? cat("This length would on ", html_count(*plan.devices_needed), " x ",
                                       html_escaped(request.hardware.name), ".")
                                 : "",
             "</p>\n");
}

std::string configuration_section(const PlanRequest& request, const Plan& plan, const std::string& launch) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : train_options_of(request, plan.best))
    rows.push_back(
        {cat("--", name), value.is_number_integer() ? html_data(value.get<int64_t>(), value.dump())
                          : value.is_number()
                              ? html_data(value.get<double>(), format_fixed(value.get<double>(), 4))
                              : html_escaped(value.is_string() ? value.get<std::string>() : value.dump())});
  const Configuration& c = plan.best.configuration;
  return cat("<h2>", plan.fits() ? "Recommended" : "The least over", "</h2>\n<p><strong>",
             html_escaped(configuration_text(plan.best)),
             "</strong></p>\n<p>Samples of a step: ", html_count(c.samples()), " = ",
             html_count(c.data_parallel), " groups of ", html_count(c.sequence_ranks()),
             " ranks x micro-batch ", html_count(c.batch), " x accumulation ", html_count(c.accumulation),
             ".</p>\n<pre>", html_escaped(launch), "</pre>\n",
             table("As options of trireme train", {"option", "value"}, {"", ""}, rows));
}

std::string page(const std::string& title, const std::string& body) {
  return cat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      title, "</title>\n<style>", kPlanStyle, "</style>\n</head>\n<body>\n", body, "</body>\n</html>\n");
}

std::string advice_lines(const Plan& plan) {
  std::string html;
  for (const std::string& line : plan.advice) html += cat("<p>", html_escaped(line), "</p>\n");
  return html;
}

std::string hardware_text(const PlanRequest& request, int devices) {
  const HardwareProfile& hardware = request.hardware;
  return cat("<p class=\"quiet\">", html_count(devices), " x ", html_escaped(hardware.name),
             hardware.description.empty() ? "" : cat(" (", html_escaped(hardware.description), ")"), ", ",
             name_of(request.settings.precision), ", objective ", spaced(name_of(request.objective)),
             "</p>\n");
}

}  // namespace

std::string plan_html(const PlanRequest& request, const Plan& plan, const std::string& launch) {
  const std::string name = html_escaped(request.model_name);
  return page(
      cat(name, ": a plan by Trireme"),
      cat("<h1>", name, ", samples of ", html_count(plan.best.tokens()), " tokens</h1>\n",
          hardware_text(request, plan.best.configuration.ranks()), verdict(request, plan),
          facts(request, plan), configuration_section(request, plan, launch),
          memory_section(request, plan.best), time_section(plan.best), runners_up_section(request, plan),
          frontier_section(request, plan),
          plan.advice.empty() ? "" : "<h2>Advice</h2>\n" + advice_lines(plan), sureness_section(request)));
}

std::string stages_html(const PlanRequest& request, const std::vector<Plan>& plans,
                        const std::string& launch) {
  std::vector<std::vector<std::string>> rows;
  std::string advice;
  for (const Plan& plan : plans) {
    const Planned& best = plan.best;
    rows.push_back({html_count(best.tokens()), plan.fits() ? "yes" : "<span class=\"over\">no</span>",
                    html_rate(best.device_tokens_per_second()), html_seconds(best.time.seconds),
                    memory_cell(request, best), html_escaped(configuration_text(best))});
    if (!plan.advice.empty())
      advice += cat("<h3>", html_count(best.tokens()), " tokens</h3>\n", advice_lines(plan));
  }
  const std::string name = html_escaped(request.model_name);
  return page(cat(name, ": stages by Trireme"),
              cat("<h1>", name, ", stages of length</h1>\n", hardware_text(request, request.devices),
                  "<h2>Stages</h2>\n",
                  table("Each by itself",
                        {"tokens", "fits", cat("tokens/s each ", request.hardware.device_noun()), "step",
                         "memory", "configuration"},
                        {"n", "", "n", "n", "bars", ""}, rows),
                  "<pre>", html_escaped(launch), "</pre>\n",
                  advice.empty() ? "" : "<h2>Advice</h2>\n" + advice, sureness_section(request)));
}

}  // namespace trireme
