"""Pieces of modules that the compiler for TPUs wrote (libtpu 0.0.52), shortened: names and layouts are its own."""

import re


def with_parameters(text: str) -> str:
    """With a line for each parameter in the head of its computation."""

    def declare(head: re.Match[str]) -> str:
        parameters = re.findall(r"([\w.]+): (\w+\[[\d,]*\](?:\{[^}]*\})?)", head[1])
        return "\n".join([head[0], *(f"  %{name} = {shape} parameter({number})" for number, (name, shape) in enumerate(parameters))])

    return re.sub(r"^.*%[\w.]+ \((.*)\) -> .*\{$", declare, text, flags=re.MULTILINE)


LOOP = """HloModule jit_traced
%wide.cond (wide.param: (s32[], bf16[8,64])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(63)
  %wide.param = (s32[]{:T(128)}, bf16[8,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.1 = s32[]{:T(128)} get-tuple-element(%wide.param), index=0
  ROOT %compare.62 = pred[]{:T(512)} compare(%get-tuple-element.1, %constant.1), direction=LT, backend_config={"flag_configs":[]}
}
%inner.cond (inner.param: (s32[], f32[4,128])) -> pred[] {
  %constant.2 = s32[]{:T(128)} constant(16)
  %inner.param = (s32[]{:T(128)}, f32[4,128]{1,0:T(4,128)}) parameter(0)
  %get-tuple-element.2 = s32[]{:T(128)} get-tuple-element(%inner.param), index=0
  ROOT %lt.97 = pred[]{:T(512)} compare(%get-tuple-element.2, %constant.2), direction=LT
}
%inner.body (inner.param.1: (s32[], f32[4,128])) -> (s32[], f32[4,128]) {
  %inner.param.1 = (s32[]{:T(128)}, f32[4,128]{1,0:T(4,128)}) parameter(0)
  %get-tuple-element.3 = f32[4,128]{1,0:T(4,128)} get-tuple-element(%inner.param.1), index=1
  %all-reduce.1 = f32[4,128]{1,0:T(4,128)} all-reduce(%get-tuple-element.3), channel_id=7, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %get-tuple-element.4 = s32[]{:T(128)} get-tuple-element(%inner.param.1), index=0
  ROOT %tuple.2 = (s32[]{:T(128)}, f32[4,128]{1,0:T(4,128)}) tuple(%get-tuple-element.4, %all-reduce.1)
}
%fused_computation.start (param_0.1: bf16[2,64]) -> (bf16[2,64], bf16[8,64]) {
  %param_0.1 = bf16[2,64]{1,0:T(8,128)(2,1)} parameter(0)
  %all-gather.251 = bf16[8,64]{1,0:T(8,128)(2,1)} all-gather(%param_0.1), channel_id=164, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  ROOT %custom-call.93 = (bf16[2,64]{1,0:T(8,128)(2,1)}, bf16[8,64]{1,0:T(8,128)(2,1)S(1)}, s32[2]{0:S(4)}, u32[]{:S(2)}) custom-call(%all-gather.251), custom_call_target="AsyncCollectiveStart"
}
%async_collective_fusion.532 (param_0.2: bf16[2,64]) -> (bf16[2,64], bf16[8,64]) {
  %param_0.2 = bf16[2,64]{1,0:T(8,128)(2,1)} parameter(0)
  %all-gather.239 = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} all-gather(%param_0.2), channel_id=164, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  ROOT %tuple.366 = (bf16[2,64]{1,0}, bf16[8,64]{1,0}) tuple(%param_0.2, %all-gather.239)
}
%fused_computation.done (param_0.3: bf16[2,64]) -> bf16[8,64] {
  %param_0.3 = bf16[2,64]{1,0:T(8,128)(2,1)} parameter(0)
  %all-gather.243 = bf16[8,64]{1,0:T(8,128)(2,1)} all-gather(%param_0.3), channel_id=164, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  ROOT %custom-call.87 = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} custom-call(%param_0.3, %all-gather.243), custom_call_target="AsyncCollectiveDone"
}
%wide.body (wide.param.1: (s32[], bf16[2,64])) -> (s32[], bf16[2,64]) {
  %wide.param.1 = (s32[]{:T(128)}, bf16[2,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.5 = bf16[2,64]{1,0:T(8,128)(2,1)} get-tuple-element(%wide.param.1), index=1
  %fusion.1 = (bf16[2,64]{1,0:T(8,128)(2,1)}, bf16[8,64]{1,0:T(8,128)(2,1)S(1)}) fusion(%get-tuple-element.5), kind=kCustom, calls=%fused_computation.start
  %fusion.2 = (bf16[2,64]{1,0}, bf16[8,64]{1,0}) fusion(%get-tuple-element.5), kind=kCustom, calls=%async_collective_fusion.532
  %fusion.3 = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} fusion(%get-tuple-element.5), kind=kCustom, calls=%fused_computation.done
  %get-tuple-element.6 = s32[]{:T(128)} get-tuple-element(%wide.param.1), index=0
  ROOT %tuple.3 = (s32[]{:T(128)}, bf16[2,64]{1,0:T(8,128)(2,1)}) tuple(%get-tuple-element.6, %get-tuple-element.5)
}
ENTRY %main.143_spmd (param.1: bf16[2,64], param.2: f32[4,128]) -> (bf16[2,64], f32[4,128]) {
  %param.1 = bf16[2,64]{1,0:T(8,128)(2,1)} parameter(0)
  %param.2 = f32[4,128]{1,0:T(4,128)} parameter(1)
  %constant.10 = s32[]{:T(128)} constant(1)
  %copy.10 = s32[]{:T(128)} copy(%constant.10)
  %constant.11 = s32[]{:T(128)} constant(0)
  %tuple.308 = (s32[]{:T(128)}, bf16[2,64]{1,0:T(8,128)(2,1)}) tuple(%copy.10, %param.1)
  %while.1 = (s32[]{:T(128)}, bf16[2,64]{1,0:T(8,128)(2,1)}) while(%tuple.308), condition=%wide.cond, body=%wide.body
  %tuple.309 = (s32[]{:T(128)}, f32[4,128]{1,0:T(4,128)}) tuple(%constant.11, %param.2)
  %while.2 = (s32[]{:T(128)}, f32[4,128]{1,0:T(4,128)}) while(%tuple.309), condition=%inner.cond, body=%inner.body
  %send.21 = (bf16[224,8,128]{2,1,0:T(8,128)(2,1)}, u32[], token[]) send(%param.1, %after-all.21), channel_id=4, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv.21 = (bf16[224,8,128]{2,1,0:T(8,128)(2,1)}, u32[], token[]) recv(%after-all.21), channel_id=3, is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %get-tuple-element.7 = bf16[2,64]{1,0:T(8,128)(2,1)} get-tuple-element(%while.1), index=1
  %get-tuple-element.8 = f32[4,128]{1,0:T(4,128)} get-tuple-element(%while.2), index=1
  ROOT %tuple.310 = (bf16[2,64]{1,0:T(8,128)(2,1)}, f32[4,128]{1,0:T(4,128)}) tuple(%get-tuple-element.7, %get-tuple-element.8)
}
"""  # noqa: E501  # kept as it was written

UPDATE = with_parameters("""HloModule jit_f
%fused_computation.1 (param_0: f32[32,16,128], param_1: f32[32,16,128], param_2: s32[]) -> f32[32,16,128] {
  %constant.3 = s32[]{:T(128)} constant(0)
  %dynamic-slice.1 = f32[1,16,128]{2,1,0:T(8,128)} dynamic-slice(%param_1, %param_2, %constant.3, %constant.3)
  %negate.1 = f32[1,16,128]{2,1,0:T(8,128)} negate(%dynamic-slice.1)
  ROOT %dynamic-update-slice.1 = f32[32,16,128]{2,1,0:T(8,128)} dynamic-update-slice(%param_0, %negate.1, %param_2, %constant.3)
}
ENTRY %main (p0: f32[32,16,128], p1: f32[32,16,128], p2: s32[]{:T(128)S(2)}, p3: f32[16,128]) -> f32[32,16,128] {
  %fusion.9 = f32[32,16,128]{2,1,0:T(8,128)} fusion(%p0, %p1, %p2), kind=kLoop, calls=%fused_computation.1
  %add.1 = f32[16,128]{1,0:T(8,128)S(1)} add(%p3, %p3)
  %copy-start.1 = (f32[16,128]{1,0:T(8,128)S(5)}, f32[16,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%p3)
  %copy-done.1 = f32[16,128]{1,0:T(8,128)S(5)} copy-done(%copy-start.1)
  ROOT %bitcast.1 = f32[32,16,128]{2,1,0:T(8,128)} bitcast(%fusion.9)
}
""")

REPORT = """Memory Space: default (color=0)
Total bytes: 19660826624 (18.31GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
   16.00GiB( 23%);   16.00GiB;   1942831104;                1; f32[1024,8,4096,5]
Memory Space: smem (color=2)
Total bytes: 120 (120B)
Memory Space: hbm (color=3)
Total bytes: 134217728 (128.00MiB)
Memory Space: cmem (color=5)
Total bytes: 21474836480 (20.00GiB)
"""

BUFFERS = """BufferAssignment:
allocation 0: size 1024, page 0, thread-local:
 value: <652 select.4 @0> (size=1024,offset=0): pred[]
allocation 1: size 35389440, page 0, parameter 2, shape |f32[64,5,27648]| at ShapeIndex {}, maybe-live-out:
 value: <5711 param.38 @0> (size=35389440,offset=0): f32[64,5,27648]{2,1,0:T(8,128)}
allocation 2: size 512, page 0, parameter 7, shape |f32[]| at ShapeIndex {}:
 value: <5726 param.39 @0> (size=512,offset=0): f32[]
allocation 3: size 2097152, page 0, constant:
"""

REFUSAL = """RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries (31.53G) exceeds available HBM (30.75G). HLO module: jit_traced.
See https://openxla.org/xla/errors/error_1000 for more details."""  # noqa: E501  # as it was written
OLDER_REFUSAL = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 39.30G of 30.75G hbm. Exceeded"
)

NESTED = with_parameters("""HloModule jit_traced
%inner.read (param_0.1: bf16[64,8,128], param_1.1: s32[]) -> bf16[8,128] {
  %bitcast.1 = bf16[64,8,128]{2,1,0:T(8,128)(2,1)} bitcast(%param_0.1)
  %dynamic-slice.1 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%bitcast.1, %param_1.1, %param_1.1, %param_1.1)
  ROOT %bitcast.2 = bf16[8,128]{1,0:T(8,128)(2,1)} bitcast(%dynamic-slice.1)
}
%outer.read (param_0.2: bf16[64,8,128], param_1.2: s32[]) -> bf16[8,128] {
  ROOT %fusion.1 = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%param_0.2, %param_1.2), kind=kLoop, calls=%inner.read
}
%inner.write (param_0.3: bf16[64,8,128], param_1.3: bf16[1,8,128], param_2.3: s32[]) -> bf16[64,8,128] {
  ROOT %dynamic-update-slice.1 = bf16[64,8,128]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%param_0.3, %param_1.3, %param_2.3)
}
%outer.write (param_0.4: bf16[64,8,128], param_1.4: bf16[1,8,128], param_2.4: s32[]) -> bf16[64,8,128] {
  ROOT %fusion.2 = bf16[64,8,128]{2,1,0:T(8,128)(2,1)} fusion(%param_0.4, %param_1.4, %param_2.4), kind=kLoop, calls=%inner.write
}
%async.slice (param_0.5: bf16[64,8,128]) -> bf16[1,8,128] {
  ROOT %slice.1 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)S(1)} slice(%param_0.5), slice={[0:1], [0:8], [0:128]}
}
%async.out (param_0.6: bf16[64,8,128]{2,1,0:T(8,128)(2,1)S(5)}, param_1.6: bf16[1,8,128], param_2.6: s32[]) -> bf16[64,8,128] {
  ROOT %dynamic-update-slice.2 = bf16[64,8,128]{2,1,0:T(8,128)(2,1)S(5)} dynamic-update-slice(%param_0.6, %param_1.6, %param_2.6)
}
%async.in (param_0.7: bf16[64,8,128]{2,1,0:T(8,128)(2,1)S(5)}, param_1.7: s32[]) -> bf16[1,8,128] {
  ROOT %dynamic-slice.2 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%param_0.7, %param_1.7, %param_1.7, %param_1.7)
}
ENTRY %main (param.1: bf16[64,8,128], param.2: bf16[1,8,128], param.3: s32[], param.4: bf16[64,8,128]{2,1,0:S(5)}) -> bf16[64,8,128] {
  READ
  ROOT %tuple.1 = (bf16[64,8,128]{2,1,0:T(8,128)(2,1)}) tuple(%param.1)
}
""")

TAKEN = with_parameters("""HloModule jit_traced
%async.gather (param_0.8: bf16[512,128], param_1.8: s32[4]) -> bf16[4,128] {
  ROOT %custom-call.1 = bf16[4,128]{1,0:T(8,128)(2,1)} custom-call(%param_0.8, %param_1.8), custom_call_target="TODO(b/522284627)"
}
ENTRY %main (param.5: bf16[512,128], param.6: s32[4], param.7: bf16[640,128]) -> bf16[512,128] {
  READ
  ROOT %tuple.2 = (bf16[512,128]{1,0:T(8,128)(2,1)}) tuple(%param.5)
}
""")

PRODUCTS = (
    """HloModule jit_traced
%body.1 (param.10: (s32[], f32[16,256,256])) -> (s32[], f32[16,256,256]) {
  %param.10 = (s32[]{:T(128)}, f32[16,256,256]{2,1,0:T(8,128)}) parameter(0)
  %of.1 = f32[16,256,256]{2,1,0:T(8,128)} get-tuple-element(%param.10), index=1
  %convolution.1 = f32[16,256,256]{2,1,0:T(8,128)} convolution(%of.1, %of.1), STRIDED, NAMED_UPDATE
  ROOT %tuple.3 = (s32[]{:T(128)}, f32[16,256,256]{2,1,0:T(8,128)}) tuple(%of.1, %convolution.1)
}
ENTRY %main (param.12: (s32[], f32[16,256,256]), param.13: bf16[8,4096,1024], param.14: bf16[8,128,1024]) -> bf16[8,4096,8,128] {
  %param.12 = (s32[]{:T(128)}, f32[16,256,256]{2,1,0:T(8,128)}) parameter(0)
  %param.13 = bf16[8,4096,1024,1]{2,1,3,0:T(8,128)(2,1)} parameter(1)
  %param.14 = bf16[8,128,1024,1]{2,1,0,3:T(8,128)(2,1)} parameter(2)
  %while.1 = (s32[]{:T(128)}, f32[16,256,256]{2,1,0:T(8,128)}) while(%param.12), body=%body.1, TRIPS
  %convolution.3 = bf16[4096,8]{1,0:T(8,128)(2,1)} convolution(%while.1, %while.1), dim_labels=bf_io->bf
  ROOT %convolution.2 = bf16[8,4096,8,128]{3,1,2,0:T(8,128)(2,1)} convolution(%param.13, %param.14), HEADS, NAMED_MODEL
}
""".replace("STRIDED", "window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf")
    .replace("HEADS", "window={size=1x8 pad=0_0x7_7 rhs_reversal=0x1}, dim_labels=0bf1_1oi0->0b1f")
    .replace("NAMED_UPDATE", 'metadata={op_name="jit(traced)/while/body/closed_call/vmap()/dot_general"}')
    .replace("NAMED_MODEL", 'metadata={op_name="jit(traced)/jvp()/while/body/closed_call/dot_general"}')
    .replace("TRIPS", 'backend_config={"known_trip_count":{"n":"5"}}')
)

OFFLOADED = with_parameters("""HloModule jit_traced
%called.1 (param_0.20: bf16[2,128,64]) -> bf16[2,128,256] {
  ROOT %all-gather.1 = bf16[2,128,256]{1,2,0} all-gather(%param_0.20), channel_id=10, replica_groups=mesh['axis_0'=4] {'axis_0'}
}, execution_thread="sparsecore"
%async_computation.1 (param_0.21: bf16[2,128,64]) -> bf16[2,128,256] {
  ROOT %custom-call.1 = bf16[2,128,256]{1,2,0:T(16,128)(2,1)} custom-call(%param_0.21), called_computations={%called.1}
}, execution_thread="sparsecore"
ENTRY %main (param.20: bf16[2,128,64]) -> bf16[2,128,256] {
  %start.1 = ((), (), (s32[32768]{0:T(1024)})) async-start(), async_execution_thread="sparsecore", calls=%async_computation.1
  %update.1 = ((bf16[2,128,64]), bf16[2,128,256]{1,2,0}, ()) async-update(%start.1, %param.20)
  ROOT %done.1 = bf16[2,128,256]{1,2,0:T(16,128)(2,1)} async-done(%update.1)
}
""")
