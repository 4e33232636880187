// What the launcher with --hostfile tells the launcher that it starts on each host, by the stdin of ssh: on a
// command line, other users of the host would read the secret, and a shell would take words apart.
//
//   host  -> first   kReadyLine              on stderr; before it, what ssh and the host's shell print
//   first -> host    the order, a line       JSON: options, command, secret, environment
//   host  -> first   kListensWords PORT      of machine 0 of several: the others' order has this port
//   first -> host    "stop SIGNAL"           any number of times; and kSignOfLife every 10 s
//
// When stdin ends, or is silent for a minute, the first launcher or the connection is gone: the run saves and
// ends.
#pragma once

#include <map>
#include <string>

#include "trireme/base/json.h"
#include "trireme/launch/launch.h"

namespace trireme {

inline constexpr const char* kReadyLine = "trireme launch: ready, protocol 1";
inline constexpr const char* kListensWords = "trireme launch: listens at port ";
inline constexpr const char* kStopWord = "stop ";
inline constexpr const char* kSignOfLife = "here";
inline constexpr double kSignOfLifeOfFirst_seconds = 10;
// With the number of the restart behind it, machine 0 says it to the user.
inline constexpr const char* kAgainWords = "trireme launch: starting all ranks again (restart ";

struct LaunchOrder {
  LaunchOptions options;  // of one machine
  std::string secret;
  std::map<std::string, std::string> environment;  // to set in the host's launcher, and so in its ranks
};

Json to_json(const LaunchOrder& order);
// Throws DataError.
LaunchOrder parse_launch_order(const Json& json);

// The variables of this process that ranks on other machines get too: those of libraries that a run uses.
std::map<std::string, std::string> passed_environment();

// Reads the order from stdin, sets its environment, and takes its secret for the run's. From then on a thread
// turns lines of stdin, and its end, into signals of this process: call it before other threads start.
LaunchOptions take_launch_order();

}  // namespace trireme
