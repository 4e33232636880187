"""cuDNN's graphs of calls of libtorch's operators: what build_graph and build_graph_backward of its cudnn/MHA.cpp make, for
an H200. A call is as tests/kernels/operator_calls.h writes it. No torch here.

As a program, plans the graphs of calls (JSON, a line each) and prints the bytes of workspace that each plan asks for. cuDNN
plans for a device by its properties (cuDNN 9.8 and newer, "deviceless compilation"), without one; but it also loads what
it compiles, so the CUDA driver must be there, or a stand-in (test_cudnn_plans.py)."""

import json
import sys

import cudnn

# As the driver would tell them.
H200 = {"deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
        "multiProcessorCount": 132, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
        "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 62914560,
        "totalGlobalMem": 150000000000, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "isTccDriver": 0,
        "supportCoopLaunch": 1}


class Graph:
    def __init__(self, query, device):
        io = {"BFloat16": cudnn.data_type.BFLOAT16, "Half": cudnn.data_type.HALF}[query["dtype"]]
        self.graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=cudnn.data_type.FLOAT,
                                   compute_data_type=cudnn.data_type.FLOAT, sm_version=90,
                                   **({"device_property": device} if device else {}))

    def input(self, name, tensor):
        fp32 = {"data_type": cudnn.data_type.FLOAT} if tensor["dtype"] == "Float" else {}
        return self.graph.tensor(name=name, dim=tensor["sizes"], stride=tensor["strides"], **fp32)

    def inputs(self, arguments, *names):
        return {short: self.input(short, arguments[name]) for short, name in names}

    @staticmethod
    def output(tensor, layout):
        tensor.set_output(True).set_dim(layout["sizes"]).set_stride(layout["strides"])
        if layout["dtype"] == "Float":
            tensor.set_data_type(cudnn.data_type.FLOAT)


def forward_graph(call, device=None):
    arguments = call["arguments"]
    graph = Graph(arguments["query"], device)
    results = graph.graph.sdpa(name="sdpa", is_inference=False, attn_scale=arguments["scale"], use_causal_mask=arguments["is_causal"],
                               **graph.inputs(arguments, ("q", "query"), ("k", "key"), ("v", "value")))
    for tensor, layout in zip(results, call["returns"]):
        graph.output(tensor, layout)
    return graph.graph


def backward_graph(call, device=None):
    arguments = call["arguments"]
    graph = Graph(arguments["query"], device)
    names = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"), ("dO", "grad_out"), ("stats", "logsumexp"))
    results = graph.graph.sdpa_backward(name="sdpa_backward", attn_scale=arguments["scale"],
                                        use_causal_mask=arguments["is_causal"], **graph.inputs(arguments, *names))
    for tensor, layout in zip(results, call["returns"]):
        graph.output(tensor, layout)
    return graph.graph


def planned_workspace_bytes(call, device):
    """Raises where cuDNN has no engine for the graph."""
    make = {"_cudnn_attention_forward": forward_graph, "_cudnn_attention_backward": backward_graph}[call["operator"]]
    graph = make(call, device)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    return graph.get_workspace_size()


if __name__ == "__main__":
    h200 = cudnn.create_device_properties(json.dumps(H200))
    for line in sys.stdin:
        print(planned_workspace_bytes(json.loads(line), h200))
