#include "trireme/base/error.h"
#include "trireme/launch/launch.h"

namespace trireme {

void list_launch_options(OptionList& list, LaunchOptions& o) {
  constexpr double kDay = 86400;
  list.count("nproc_per_node", o.nproc, from_to(1, 4096), "ranks on this machine");
  list.count("max_restarts", o.max_restarts, from_to(0, 1000000),
             "start the run again up to so many times after a lost rank; training goes on from its last "
             "checkpoint");
  list.real("grace_seconds", o.grace_seconds, from_to(0, kDay),
            "from SIGTERM to SIGKILL when the rest is ended");
  list.real("stop_seconds", o.stop_seconds, from_to(0, 7 * kDay),
            "for the ranks to save and end when asked to stop");
  list.text("log_dir", o.log_dir, "keep each rank's output in DIR/attempt-A/rank-R.out and .err");
  list.count("nnodes", o.nnodes, from_to(1, 65536), "machines; run the launcher on each");
  list.count("node_rank", o.node_rank, from_to(0, 65535), "which machine this is, from 0");
  list.text("master_addr", o.master_address, "name or address of machine 0; not given: 127.0.0.1");
  list.count("master_port", o.master_port, from_to(0, 65535),
             "free port of machine 0; 0: on one machine, the system chooses");
  list.real("join_seconds", o.join_seconds, from_to(1, 7 * kDay),
            "for the launchers of all machines to meet");
  list.text("secret_file", o.secret_file,
            "what the launchers of several machines share (openssl rand -hex 32)");
  list.text("hostfile", o.hosts.hostfile,
            "lines 'HOST slots=8': start ranks on all of these machines, over ssh; the first is machine 0");
  list.text("include", o.hosts.include, "only these hosts and slots (GPUs): host1:0,1@host2");
  list.text("exclude", o.hosts.exclude, "all but these hosts and slots: host1:0,1@host2");
  list.count("num_nodes", o.hosts.num_nodes, from_to(1, 65536), "only the first so many hosts of --hostfile");
  list.count("num_gpus", o.hosts.num_gpus, from_to(1, 4096), "GPUs, and so ranks, of each machine");
  list.count("ssh_port", o.hosts.ssh_port, from_to(1, 65535), "where the hosts' ssh servers listen");
  list.text("launcher_args", o.hosts.launcher_args, "more words for ssh, such as '-i KEYFILE'");
  list.flag("elastic", o.elastic,
            "restart without hosts of --hostfile that are lost for good, at the same global batch; counts "
            "as one of --max_restarts");
  list.flag("by_launcher", o.by_launcher,
            "as the launcher with --hostfile starts it on each host; the rest comes by stdin");
}

int LaunchOptions::ranks_before(int node) const {
  int ranks = 0;
  for (int i = 0; i < node; ++i) ranks += ranks_of(i);
  return ranks;
}

void check_launch_options(const LaunchOptions& options) {
  list_of_copy(options, list_launch_options).check();
  if (options.node_rank >= options.nnodes)
    throw ConfigError(cat("launch: --node_rank is ", options.node_rank, " of --nnodes ", options.nnodes,
                          "; machines count from 0"));
  if (options.nnodes > 1 && options.master_port == 0 && !options.on_listening)
    throw ConfigError(
        "launch: several machines need --master_port, the same free port of machine 0 for all of them");
  if (options.nnodes > 1 && options.master_address.empty())
    throw ConfigError("launch: several machines need --master_addr, the name or address of machine 0");
}

}  // namespace trireme
