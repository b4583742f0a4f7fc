# make_fixtures.py -- writes tests/fixtures/codec_*.kvf: what the oracle in codecs.py expects.
#
#     python3 make_fixtures.py [FOLDER]        needs NumPy; FOLDER is tests/fixtures by default
#
# A file is lines of text `name value`, the line `data`, then arrays without padding, little-endian:
#
#     k_codes    levels, unsigned, k_bits wide, least significant bit first, one stream, padded to a
#                byte; [num_kv_heads, quantized, head_dim]
#     k_scales   f32 [num_kv_heads, k_groups]; k_groups = 0 where there is no metadata.  Within a
#     k_offsets  head as kvl_read_codes orders them; x ~ scale * code + offset for every codec
#     k_choices  u32 [num_kv_heads, k_choices], where a unit chooses its transforms
#     v_codes, v_scales, v_offsets   likewise, of head_dim_v
#     k_rows     f32 [num_samples, num_kv_heads, head_dim], the rows named by the line `samples`
#     v_rows     f32 [num_samples, num_kv_heads, head_dim_v]
#     o          f32 [num_queries, num_q_heads, head_dim_v], queries at the newest positions
#     lse        f32 [num_queries, num_q_heads]
#     checksum   u32, FNV-1a of all the arrays before it
#
# Inputs are not stored: class Lcg below and test_rows in test_support.c make the same numbers, as
# integers times a power of two, so that no rounding depends on the language.  Where there is a line
# `rope HALVES DIMS BASE`, keys turn so (kvl_rope).  Where there is a line `rows NAME`, keys, values
# and calibrated tables are those of rows_NAME.bin (record_rows.py).

import importlib.util
import os
import sys
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
# By path, since the standard library has a module of the same name.
_spec = importlib.util.spec_from_file_location("kvl_codecs", os.path.join(HERE, "codecs.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

KEY_SEED, VALUE_SEED, QUERY_SEED = 11, 22, 33

# name, spec, q heads, kv heads, head_dim, head_dim_v, quantized, queries, soft_cap, window_len
CASES = [
    ("f16",        "f16:",                                   2, 2,  32,  32, 32, 2, 0.0, 0),
    ("bf16",       "bf16:",                                  2, 1,  48,  32, 32, 1, 0.0, 0),
    ("q8_0",       "q8_0:",                                  3, 1,  64,  64, 64, 2, 0.0, 0),
    ("q4_0",       "q4_0:",                                  4, 1,  96,  64, 32, 1, 0.0, 0),
    ("q8_q4",      "q8_0/q4_0:",                             7, 1,  64, 128, 32, 1, 0.0, 0),
    ("kivi_12",    "kivi:k1,v2,",                            3, 1,  64,  64, 64, 2, 0.0, 0),
    ("kivi_23",    "kivi:k2,v3,",                            8, 2,  32,  64, 64, 1, 0.0, 0),
    ("kivi_34",    "kivi:k3,v4,vg16,",                       4, 1,  80,  80, 32, 1, 30.0, 0),
    ("kivi_45",    "kivi:k4,v5,",                            7, 1,  96,  96, 32, 1, 0.0, 0),
    ("kivi_56",    "kivi:k5,v6,",                           16, 1, 128,  64, 32, 1, 0.0, 0),
    ("kivi_68",    "kivi:k6,v8,",                            1, 1, 192,  64, 32, 1, 0.0, 40),
    ("kivi_81",    "kivi:k8,v1,",                            4, 1,  64, 256, 32, 1, 0.0, 0),
    ("kivi_12f",   "kivi:k1,v2,meta=f16,",                   1, 1,  64,  64, 64, 2, 0.0, 0),
    ("kivi_23f",   "kivi:k2,v3,meta=f16,",                   3, 1,  96,  32, 64, 1, 0.0, 0),
    ("kivi_34f",   "kivi:k3,v4,g16,meta=f16,",               8, 2,  80,  32, 32, 1, 0.0, 0),
    ("kivi_45f",   "kivi:k4,v5,meta=f16,",                   7, 1, 128,  32, 32, 1, 0.0, 0),
    ("kivi_56f",   "kivi:k5,v6,meta=f16,",                  16, 1,  64,  64, 32, 1, 50.0, 0),
    ("kivi_68f",   "kivi:k6,v8,meta=f16,",                   1, 1, 256,  64, 32, 1, 0.0, 0),
    ("kivi_81f",   "kivi:k8,v1,meta=f16,",                   4, 2,  64,  32, 32, 1, 0.0, 33),
    ("rtn_23",     "rtn:k2,v3,",                             3, 1,  64,  64, 32, 1, 0.0, 0),
    ("rtn_16f",    "rtn:k1,v6,g16,meta=f16,",                4, 1,  80,  48, 32, 1, 0.0, 0),
    ("rtn_wide",   "rtn:k4,v4,kg128,vg64,meta=f16,",         3, 1, 128,  64, 32, 1, 0.0, 0),
    ("rtn_bf16",   "rtn:k5,v4,rows=bf16,",                   2, 1,  64,  64, 32, 1, 0.0, 0),
    ("had_whole",  "kivi:k2,v2,transform=hadamard,",         3, 1,  64, 128, 32, 1, 0.0, 0),
    ("had_piece",  "rtn:k4,v3,transform=hadamard32,",        4, 1,  96,  64, 32, 1, 0.0, 0),
    ("had_mixed",  "kivi:k3,v4,meta=f16,vg16,v.transform=hadamard16,",
                                                             3, 1,  64,  80, 32, 1, 0.0, 0),
    ("midpoint",   "rtn:k2,v3,levels=midpoint,fit=rms,transform=hadamard,",
                                                             3, 1,  64,  96, 32, 1, 0.0, 0),
    ("midpoint_c", "kivi:k4,v1,levels=midpoint,fit=rms,meta=f16,vg16,",
                                                             4, 1,  96,  64, 32, 1, 0.0, 0),
    ("feedback",   "kivi:k2,v2,round=feedback2,fit=search,", 4, 2,  64,  64, 64, 2, 0.0, 0),
    ("log4",       "kivi:k2,v2,meta=log4,round=feedback2,fit=search,transform=whiten,",
                                                             4, 2,  64,  96, 32, 1, 0.0, 0),
    ("log4_plain", "kivi:k4,v1,meta=log4,k.shift=mean,kg16,v.transform=hadamard32,",
                                                             3, 1,  96,  64, 32, 1, 0.0, 0),
    ("feedback_f", "kivi:k3,v1,round=feedback1,meta=f16,vg16,transform=flat,",
                                                             3, 1,  32,  80, 32, 1, 0.0, 0),
    ("feedback_m", "kivi:k4,v3,round=feedback3,kg16,meta=e4m3,shift=mean,",
                                                             3, 1,  48,  32, 32, 1, 0.0, 0),
    ("trellis",    "kivi:k2,v2,round=trellis8,",             4, 1,  64,  64, 64, 1, 0.0, 0),
    ("trellis_1",  "kivi:k1,v3,round=trellis4,fit=search,meta=e4m3,vg16,kg16,",
                                                             3, 1,  32,  80, 32, 1, 0.0, 0),
    ("trellis_4",  "rtn:k4,v2,k.round=trellis16,v.round=trellis64,fit=clip,kg48,vg96,meta=f16,",
                                                             2, 1,  96,  96, 32, 1, 0.0, 0),
    ("trellis_w",  "rtn:k1,v2,k.round=trellis32,v.round=trellis8,v.axis=per_channel,kg64,"
                   "transform=hadamard,",                    3, 1,  64,  32, 32, 1, 0.0, 0),
    ("trellis_fb", "kivi:k2,v2,round=feedback_trellis8,fit=search,",
                                                             4, 1,  32,  64, 32, 1, 0.0, 0),
    ("trellis_fl", "kivi:k1,v3,round=feedback_trellis4,fit=search,meta=log4,vg16,transform=flat,",
                                                             3, 1,  32,  80, 32, 1, 0.0, 0),
    ("trellis_fc", "kivi:k3,v2,round=feedback_trellis16,meta=f16,kg16,vg128,",
                                                             2, 1,  48, 128, 32, 1, 0.0, 0),
    ("dense",      "kivi:k2,v3,k.transform=flat,v.transform=whiten,fit=search,",
                                                             6, 2,  64,  96, 32, 1, 0.0, 0),
    ("dense_clip", "rtn:k2,v2,transform=balance,k.fit=clip,v.fit=clip92,kg80,vg16,shift=mean,",
                                                             3, 1,  80,  48, 32, 1, 0.0, 0),
    ("dense_raw",  "f16:transform=file,",                    2, 1,  32, 112, 32, 1, 0.0, 0),
    ("search",     "kivi:k2,v2,fit=search,",                 3, 1,  64,  96, 32, 1, 0.0, 0),
    ("search_f",   "kivi:k1,v3,fit=search,meta=f16,vg16,",   4, 1,  80,  64, 32, 1, 0.0, 0),
    ("search_e",   "rtn:k4,v1,fit=search,meta=e4m3,kg64,",   3, 1,  64,  96, 32, 1, 0.0, 0),
    ("clip",       "rtn:k2,v2,k.fit=clip,v.fit=clip92,kg64,vg32,",
                                                             3, 1,  64,  96, 32, 1, 0.0, 0),
    ("clip_c",     "kivi:k3,v4,fit=clip75,meta=f16,vg16,",   4, 1,  80,  80, 32, 1, 0.0, 0),
    ("had_96",     "kivi:k2,v4,k.transform=hadamard,",       3, 1,  96,  64, 32, 1, 0.0, 0),
    ("e4m3",       "kivi:k2,v3,meta=e4m3,",                  3, 1,  64,  96, 32, 1, 0.0, 0),
    ("e4m3_sym",   "q8_0:b5,meta=e4m3,",                     2, 1,  64,  32, 32, 1, 0.0, 0),
    ("mean",       "rtn:k4,v3,shift=mean,",                  6, 2,  64,  96, 32, 1, 30.0, 0),
    ("q4_1",       "q4_1:",                                  3, 1,  64,  96, 32, 1, 0.0, 0),
    ("q5_x",       "q5_0/q5_1:",                             2, 1,  64,  32, 32, 1, 0.0, 0),
    ("iq4_nl",     "iq4_nl:",                                3, 1,  96,  64, 32, 1, 0.0, 0),
    ("iq4_nl_had", "iq4_nl:transform=hadamard,vg16,",        3, 1,  64,  80, 32, 1, 0.0, 0),
    ("kv_int",     "kv-int8/kv-int4:",                       2, 1,  80, 128, 32, 1, 0.0, 0),
    ("fp8",        "fp8:v.levels=e5m2,v.meta=f16,",          3, 1, 256,  64, 32, 1, 0.0, 0),
    ("fp8_scaled", "fp8-tensor:v.meta=head,v.levels=e5m2,",  4, 2,  64,  80, 32, 1, 0.0, 0),
    ("nvfp4_two",  "nvfp4-tensor:",                          3, 1,  96,  64, 32, 1, 0.0, 0),
    ("mxfp4",      "mxfp4:v.transform=hadamard,",            3, 1,  64, 128, 32, 1, 0.0, 0),
    ("mxfp8",      "mxfp8:v6,v.levels=e2m3,",                2, 1,  96,  64, 32, 1, 0.0, 0),
    ("mx_more",    "mxfp8:k.levels=e5m2,v6,v.levels=e3m2,kg16,v.axis=per_channel,",
                                                             2, 1,  80,  64, 32, 1, 0.0, 0),
    ("nvfp4",      "nvfp4:v.transform=hadamard,v.meta=8bit,", 3, 1, 64,  80, 32, 1, 0.0, 0),
    ("lloyd_12",   "rtn:k1,v2,levels=lloyd,fit=norm,v.meta=f16,kg64,vg16,transform=hadamard,",
                                                             3, 1, 128,  64, 32, 1, 0.0, 0),
    ("lloyd_34",   "kivi:k3,v4,levels=lloyd,fit=matched,meta=f16,vg80,",
                                                             2, 1,  64,  80, 32, 1, 0.0, 0),
    ("lloyd_a",    "rtn:k4,v3,levels=lloyd,k.fit=amax,v.fit=matched,k.meta=e4m3,v.meta=8bit,kg8,",
                                                             4, 1,  96,  64, 32, 1, 30.0, 0),
    ("turboquant", "turboquant:",                            3, 1, 128,  96, 32, 1, 0.0, 0),
    ("qjl",        "qjl:",                                   4, 2, 128,  64, 64, 2, 0.0, 0),
    ("qjl_80",     "qjl:k.extra=sketch_apart4,rows=bf16,",   3, 1,  80,  32, 32, 1, 30.0, 40),
    ("qjl_signs",  "qjl-signs:",                             3, 1, 256,  64, 32, 1, 0.0, 0),
    ("turbo_prod", "turboquant-prod:",                       6, 1, 128,  64, 32, 2, 0.0, 0),
    ("sketch_96",  "kivi:k2,v2,k.extra=sketch3,k.transform=hadamard,shift=mean,",
                                                             3, 1,  96,  32, 32, 1, 0.0, 0),
    ("sketch_out", "rtn:k2,v3,k.extra=sketch_apart1,k.place=pre_rope,",
                                                             4, 2,  64,  32, 64, 1, 0.0, 0),
    ("turbo_3",    "turboquant-mse:b3,",                     4, 1,  96,  80, 32, 1, 0.0, 0),
    ("turbo_k8",   "fp8/turboquant:v3,k.transform=signed_hadamard16,",
                                                             2, 1,  80, 256, 32, 1, 0.0, 0),
    ("choose",     "flagrot-kivi:",                          4, 2,  64,  64, 64, 2, 0.0, 0),
    ("choose_d128", "flagrot-kivi:k3,v4,",                   4, 1, 128,  64, 64, 1, 30.0, 0),
    ("choose_d96", "flagrot-kivi:k2,v2,k.meta=f16,k.choose=unit64,",
                                                             3, 1,  96,  64, 64, 1, 0.0, 0),
    ("choose_d80", "flagrot-kivi:k4,v4,vg16,k.score=channel,",
                                                             2, 1,  80,  80, 64, 1, 0.0, 0),
    ("choose_d256", "flagrot-kivi:k2,v2,k.score=reconstruction,",
                                                             2, 1, 256,  64, 32, 1, 0.0, 0),
    ("choose_auto", "flagrot-auto:",                         4, 2,  64,  64, 32, 2, 30.0, 0),
    ("choose_auto_d128", "flagrot-auto:k4,v4,k.meta=f16,k.score=attention16,",
                                                             4, 1, 128,  64, 32, 1, 0.0, 0),
    ("choose_auto_d80", "flagrot-auto:k3,v2,g16,k.score=channel,",
                                                             3, 1,  80,  80, 32, 1, 0.0, 0),
    ("choose_fixed", "flagrot-kivi:k.choose=fixed,",         4, 2, 128,  64, 32, 1, 0.0, 0),
    ("choose_auto_fixed", "flagrot-auto:k.choose=fixed,k.meta=8bit,",
                                                             4, 2,  96,  64, 32, 1, 0.0, 0),
    ("pre_rope",   "kivi:k2,v3,k.place=pre_rope,",           4, 2,  64,  64, 64, 2, 0.0, 0),
    ("pre_rope_part", "rtn:k4,v2,k.place=pre_rope,k.transform=hadamard,shift=mean,meta=f16,",
                                                             3, 1,  96,  32, 32, 1, 30.0, 0),
    ("pre_rope_raw", "f16:k.place=pre_rope,",                2, 1,  32,  32, 32, 1, 0.0, 0),
    ("pre_rope_bf16", "kivi:k3,v4,vg16,k.place=pre_rope,fit=search,rows=bf16,",
                                                             6, 1,  80,  32, 32, 1, 0.0, 40),
    ("kvquant",    "kvquant:",                               4, 2,  64,  64, 64, 2, 0.0, 0),
    ("kvquant_2",  "kvquant:k2,v4,vg16,extra=sparse3,rows=bf16,",
                                                             3, 1,  96,  80, 32, 1, 0.0, 40),
    ("static",     "kvquant:k4,v3,k.place=post_rope,k.levels=affine,k.extra=none,vg32,v.meta=8bit,",
                                                             3, 1,  64,  64, 32, 1, 30.0, 0),
    ("sparse",     "rtn:k4,v2,extra=sparse4,k.shift=mean,v.fit=search,",
                                                             6, 1,  64, 128, 32, 1, 0.0, 0),
    ("shrink",     "rtn:k2,v3,fit=shrink80,meta=f16_point,kg64,",
                                                             3, 1,  64,  96, 32, 1, 0.0, 0),
    ("shrink_f",   "kivi:k4,v1,k.fit=shrink,v.fit=shrink95,meta=f16,",
                                                             2, 1,  64,  64, 32, 1, 0.0, 0),
    ("rotatekv",   "rotatekv:",                              4, 4,  64,  64, 64, 2, 0.0, 0),
    ("rotatekv_2", "rotatekv:k4,v3,vg16,k.meta=f16,k.round=nearest_up,rows=bf16,",
                                                             6, 6,  96,  32, 32, 1, 0.0, 0),
    ("oscar_norm", "oscar-norm:",                            4, 2,  64,  64, 64, 2, 0.0, 0),
    ("norm_mean",  "kivi:k3,v4,kg16,vg16,k.extra=token_norm,k.shift=mean,meta=f16,rows=bf16,",
                                                             3, 1,  80,  32, 32, 1, 30.0, 0),
    ("norm_dense", "kivi:k2,v2,k.extra=token_norm,k.round=feedback2,k.fit=search,k.transform=flat,",
                                                             2, 1,  64,  64, 32, 1, 0.0, 40),
    ("norm_place", "kivi:k4,v2,k.extra=token_norm,k.place=pre_rope,",
                                                             2, 1,  64,  64, 32, 1, 0.0, 0),
    ("kitty",      "kitty:kg32,",                            4, 2,  64,  64, 64, 2, 0.0, 0),
    ("kitty_3",    "kivi:k3,v2,kg16,vg16,k.extra=promote5,k.transform=hadamard,k.shift=mean,",
                                                             3, 1,  96,  32, 32, 1, 30.0, 0),
    ("kitty_1",    "kivi:k1,v2,k.extra=promote20,k.place=pre_rope,rows=bf16,k.meta=f16,",
                                                             2, 1,  80,  64, 32, 1, 0.0, 0),
    ("block_gtq",  "block-gtq:",                             4, 2,  64,  64, 64, 2, 0.0, 0),
    ("pairs_1",    "block-gtq:k1,v2,k.shift=mean,k.meta=e4m3,",
                                                             3, 1,  80,  64, 32, 1, 30.0, 0),
    ("pairs_3",    "block-gtq:k3,v2,kg48,k.meta=8bit,rows=bf16,",
                                                             6, 2,  96,  32, 32, 1, 0.0, 40),
    ("pairs_4",    "block-gtq/kivi:k4,v3,k.extra=sparse3,k.meta=one,",
                                                             2, 1, 128,  64, 32, 1, 0.0, 0),
    ("pairs_rope", "block-gtq:k2,v2,k.place=pre_rope,k.shift=mean,kg32,k.extra=sketch,",
                                                             3, 1,  96,  64, 32, 1, 0.0, 0),
    ("split",      "turboquant-split:",                      4, 2, 128,  64, 64, 2, 0.0, 0),
    ("split_3",    "turboquant-split:b3,fit=norm,k.shift=mean,v.shift=mean,meta=8bit,rows=bf16,",
                                                             3, 1,  80,  96, 32, 1, 30.0, 0),
    ("split_1",    "turboquant-split:k1,v3,k.extra=outliers96,v.extra=outliers64,k.fit=amax,"
                   "k.meta=e4m3,transform=hadamard16,v.meta=one,",
                                                             6, 2, 256, 128, 32, 1, 0.0, 40),
    ("split_aff",  "rtn:k2,v5,kg64,vg96,extra=outliers32,k.transform=hadamard,meta=f16,"
                   "v.fit=search,k.round=nearest_up,",       2, 1,  64,  96, 32, 1, 0.0, 0),
    ("split_rope", "turboquant-split/f16:k2,k.place=pre_rope,k.transform=none,",
                                                             3, 1,  96,  64, 32, 1, 0.0, 0),
    ("higgs",      "higgs:",                                 4, 2,  64,  64, 64, 2, 0.0, 0),
    ("plane_34",   "rtn:k3,v4,levels=plane,fit=norm,k.meta=8bit,v.meta=f16,kg80,vg6,shift=mean,",
                                                             3, 1,  80,  48, 32, 1, 30.0, 0),
    ("plane_42",   "higgs:k4,v2,kg32,vg16,k.place=pre_rope,k.shift=mean,v.transform=hadamard16,"
                   "rows=bf16,",                             2, 1,  96,  80, 32, 1, 0.0, 40),
    ("plane_out",  "higgs/kivi:k2,v2,kg10,k.meta=e4m3,k.transform=none,k.extra=sparse2,",
                                                             7, 1,  80,  64, 32, 1, 0.0, 0),
    ("mean_had",   "kivi:k2,v4,shift=mean,k.transform=hadamard32,",
                                                             3, 1,  96,  64, 32, 1, 0.0, 0),
]

# RoPE of keys, where the place is before it: name -> split halves, channels that turn, base
ROPES = {
    "sketch_out": (1, 64, 10000.0),
    "pairs_rope": (0, 64, 1000.0), "plane_42": (1, 64, 10000.0),
    "split_rope": (1, 64, 1000.0),
    "pre_rope": (0, 64, 1000.0), "pre_rope_part": (1, 48, 10000.0), "pre_rope_raw": (1, 32, 100.0),
    "norm_place": (1, 64, 10000.0), "kitty_1": (0, 80, 1000.0),
    "rotatekv": (0, 64, 1000.0), "rotatekv_2": (1, 64, 10000.0),
    "pre_rope_bf16": (0, 80, 500000.0), "kvquant": (1, 64, 10000.0), "kvquant_2": (0, 96, 1000.0),
}

# The same for rows of a model: name, rows, spec, q heads, soft_cap
REAL_CASES = [
    ("real_choose",  "smollm2", "flagrot-kivi:",                 6, 0.0),
    ("real_choose_4", "smollm2", "flagrot-kivi:k4,v4,k.meta=f16,", 4, 0.0),
    ("real_auto",    "smollm2", "flagrot-auto:",                 6, 30.0),
    ("real_auto_3",  "smollm2", "flagrot-auto:k3,v3,k.score=reconstruction,", 2, 0.0),
]


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        """Four numbers of 12 bits each."""
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return [self.state >> s & 4095 for s in (52, 40, 28, 16)]

    def bell(self):
        """Roughly normal: -8192 .. 8188, standard deviation near 2365."""
        return sum(self.next()) - 8192


def make_rows(seed, num_rows, heads, dim):
    """Channels with means and spreads of their own; every 16th is an outlier."""
    lcg = Lcg(seed)
    mean, spread = np.zeros((heads, dim), np.int64), np.zeros((heads, dim), np.int64)
    for h in range(heads):
        for c in range(dim):
            a, b, _, _ = lcg.next()
            wide = 4 if c % 16 == 5 else 1
            mean[h, c] = (a % 513 - 256) * wide if c % 7 == 3 or wide == 4 else a % 129 - 48
            spread[h, c] = (8 + b % 24) * wide
    bell = np.array([lcg.bell() for _ in range(num_rows * heads * dim)], np.int64)
    x = mean * 8192 + spread * bell.reshape(num_rows, heads, dim)
    return (x * 2.0**-18).astype(np.float32)


def make_queries(seed, num_rows, heads, dim):
    lcg = Lcg(seed)
    bell = np.array([lcg.bell() for _ in range(num_rows * heads * dim)], np.int64)
    return (bell.reshape(num_rows, heads, dim) * 2.0**-12).astype(np.float32)


def fnv(data):
    h = 2166136261
    for byte in data:
        h = (h ^ byte) * 16777619 % 2**32
    return h


def make_table(letter, name, heads, shape):
    """The calibrated table of layer 0 that test_calibration gives: float32 [heads, *shape]."""
    sizes = (list(shape) + [1])[:2]
    lcg = Lcg(fnv(f"{heads}.{sizes[0]}.{sizes[1]} 0.{letter}.{name}".encode("ascii")))
    bell = np.array([lcg.bell() for _ in range(heads * int(np.prod(shape)))], np.int64)
    bell = bell.reshape(heads, *shape)
    if name == "query_moment":
        return (np.einsum("hij,hkj->hik", bell, bell) * 2.0**-30).astype(np.float32)
    if name == "choice":
        least = np.where(np.arange(shape[0]) < shape[0] - 1, 0, 2048)
        return (bell > least).astype(np.float32)
    x = (bell * 2.0**-12).astype(np.float32)
    return x / np.float32(8) if name == "queries" else x + np.float32(4) if name == "query_lse" \
        else x


def make_pair_bits(letter, mean, heads, dim):
    """Bits of channels: a pair has as many more than the mean as the next one has less."""
    lcg = Lcg(fnv(f"{heads}.{dim}.1 0.{letter}.pair_bits@b{mean}".encode("ascii")))
    bits = np.zeros((heads, dim // 4, 4), np.int64)
    for head in range(heads):
        for i in range(dim // 4):
            more = (lcg.bell() & 255) % (min(mean, 6 - mean) + 1)
            bits[head, i] = [mean + more] * 2 + [mean - more] * 2
    return bits.reshape(heads, dim)


def make_transform(heads, dim, is_query):
    """F = S P H, or Q = F^-T, of test_support.c: exact entries, float32 [heads, dim, dim]."""
    order = (17 * np.arange(dim) + 3) % dim
    h = np.kron(np.eye(dim // 16), np.array(
        [[(-1)**bin(i & j).count("1") for j in range(16)] for i in range(16)]) / 4)[order]
    out = np.zeros((heads, dim, dim))
    for head in range(heads):
        shear = np.zeros((dim, dim))
        for i in range(0, dim, 2):
            s = 2 if (i // 2 + head) % 3 == 0 else 1
            t = 2 if i // 2 % 5 == 1 else 1
            shear[i:i + 2, i:i + 2] = [[s, .5], [0, t]]
        out[head] = (np.linalg.inv(shear).T if is_query else shear) @ h
    return out.astype(np.float32)


def add_feedback(side, letter, heads, dim):
    at = np.arange(dim)
    if "trellis" in side["round"]:
        cost = (make_table(letter, "feedback_cost", heads, [dim]) * 4096).astype(np.int64)
        side["tables"]["cost"] = ((128 + (cost & 255)) / 256).astype(np.float32)
    lower, beside = at[:, None] > at[None, :], at[:, None] != at[None, :]
    order = (17 * at + 5) % dim
    side["tables"]["order"] = at if "trellis" in side["round"] else order
    for name, used in (("factor", lower), ("price", beside)):
        table = make_table(letter, "feedback_" + name, heads, [dim, dim])
        side["tables"][name] = table / np.float32(32) * used


def add_tables(side, letter, heads, dim):
    base = {"log4": "log4_base", "tensor": "tensor_scale", "head": "head_scale",
            "e4m3fn_tensor": "tensor_scale"}.get(side["meta"])
    if base:
        bell = (make_table(letter, base, heads, [dim]) * 4096).astype(np.int64)
        side["tables"]["base"] = ((128 + (bell & 255)) / 256).astype(np.float32)
    if side["levels"] == "pairs":
        bell = (make_table(letter, "pair_size", heads, [dim]) * 4096).astype(np.int64)
        side["tables"]["base"] = ((128 + (bell & 255)) / 256).astype(np.float32)
        side["tables"]["bits"] = make_pair_bits(letter, side["bits"], heads, dim)
    if side["outliers"]:
        side["tables"]["outliers"] = (17 * np.arange(heads * dim).reshape(heads, dim) + 5) % dim
    if side["meta"] == "static":
        bell = (make_table(letter, "static_half", heads, [dim]) * 4096).astype(np.int64)
        side["tables"]["half"] = ((128 + (bell & 255)) / 256).astype(np.float32)
        side["tables"]["middle"] = make_table(letter, "static_middle", heads, [dim])
    if side["grouped"]:
        order = (17 * np.arange(heads * dim) + 5) % (heads * dim)
        side["tables"]["order"] = order.reshape(heads, dim)
    if side["levels"] == "kmeans":
        bell = (make_table(letter, "kmeans_book", heads, [16]) * 4096).astype(np.int64)
        side["tables"]["book"] = ((512 * np.arange(16) - 2048 + (bell & 255)) / 2048).astype(
            np.float32)
    if side["round"].startswith("feedback"):
        add_feedback(side, letter, heads, dim)
    if side["dense"]:
        side["tables"]["forward"] = make_transform(heads, dim, False)
        side["tables"]["query"] = make_transform(heads, dim, True)
    if side["shift"] == "mean":
        side["tables"]["mean"] = make_table(letter, "mean", heads, [dim])
    shapes = {}
    if side["choose"] == "fixed":
        shapes["choice"] = [dim // side["choose_piece"] + 1]
    elif side["score"] == "attention":
        shapes["queries"], shapes["query_lse"] = [side["score_number"], dim], [side["score_number"]]
    elif side["score"] == "channel":
        shapes["query_moment"] = [dim, dim]
    for name, shape in shapes.items():
        side["tables"][name] = make_table(letter, name, heads, shape)


def pack(codes, bits):
    shifts = np.arange(bits, dtype=np.uint32)
    stream = (codes.reshape(-1, 1).astype(np.uint32) >> shifts) & 1
    return np.packbits(stream.reshape(-1).astype(np.uint8), bitorder="little").tobytes()


def side_bytes(heads, bits):
    out = pack(np.stack([h["codes"] for h in heads]), bits)
    for name in ("scales", "offsets"):
        if heads[0][name] is not None:
            out += np.stack([h[name] for h in heads]).astype("<f4").tobytes()
    if "choices" in heads[0]:
        out += np.stack([h["choices"] for h in heads]).astype("<u4").tobytes()
    return out


class Recorded:
    """rows_NAME.bin: keys and values [rows, heads, dim], tables by name [heads, ...]."""

    def __init__(self, name):
        with open(os.path.join(HERE, "..", "fixtures", f"rows_{name}.bin"), "rb") as file:
            data = file.read()
        words = data.split(b"\n", 2)[1].split()
        rows, self.heads, self.dim, queries = (int(w) for w in words[1::2])
        self.at, self.data = len(data) - len(data.split(b"\n", 2)[2]), data
        self.k, self.v = (self.take("<f2", rows, self.heads, self.dim) for _ in range(2))
        self.tables = {"queries": self.take("<f2", self.heads, queries, self.dim),
                       "query_lse": self.take("<f4", self.heads, queries),
                       "mean": self.take("<f4", self.heads, self.dim)}

    def take(self, kind, *shape):
        x = np.frombuffer(self.data, kind, int(np.prod(shape)), self.at).reshape(shape)
        self.at += x.nbytes
        return x.astype(np.float32)

    def add_tables(self, side):
        wanted = ["mean"] if side["shift"] == "mean" else []
        for name in wanted:
            side["tables"][name] = self.tables[name]
        if side["score"] == "attention":
            for name in ("queries", "query_lse"):
                side["tables"][name] = self.tables[name][:, :side["score_number"]]


def make_real(case):
    name, rows, spec, hq, cap = case
    recorded = Recorded(rows)
    return make((name, spec, hq, recorded.heads, recorded.dim, recorded.dim, 64, 2, cap, 0),
                (rows, recorded))


def make(case, source=None):
    name, spec, hq, hkv, dk, dv, quantized, queries, cap, window = case
    plain = spec.startswith(("f16", "bf16", "q", "iq", "kv-", "fp", "mx", "nv"))
    sink, recent = (2, 6) if plain else (4, 20)
    spec += f"sink={sink},recent={recent},chunk=32"
    key, value, windows = oracle.parse_spec(spec, dk, dv)
    key["rope"] = ROPES.get(name)
    n = sink + recent + quantized + 9
    if source:
        kx, vx = source[1].k[:n], source[1].v[:n]
        source[1].add_tables(key)
    else:
        kx, vx = make_rows(KEY_SEED, n, hkv, dk), make_rows(VALUE_SEED, n, hkv, dv)
        add_tables(key, "k", hkv, dk)
        add_tables(value, "v", hkv, dv)
    k, k_heads = oracle.cache_rows(kx, key, windows)
    v, v_heads = oracle.cache_rows(vx, value, windows)
    q = make_queries(QUERY_SEED, queries, hq, dk)
    positions = range(n - queries, n)
    o, lse = oracle.attend(q, k, v, positions, soft_cap=cap, window_len=window)
    samples = [0, sink + quantized // 2 + 1, n - 1]
    bits = [{"pairs": 6, "plane": 2 * side["bits"] + 1}.get(
                side["levels"], side["bits"] + ("trellis" in side["round"]) +
                (side["outliers"] > 0)) for side in (key, value)]
    data = side_bytes(k_heads, bits[0]) + side_bytes(v_heads, bits[1])
    data += k[samples].astype("<f4").tobytes() + v[samples].astype("<f4").tobytes()
    data += o.astype("<f4").tobytes() + lse.astype("<f4").tobytes()
    groups = [0 if e[0]["scales"] is None else e[0]["scales"].size for e in (k_heads, v_heads)]
    lines = [
        "kvloom_fixture 1", f"spec {spec}", *([f"rows {source[0]}"] if source else []),
        *(["rope %d %d %g" % key["rope"]] if key["rope"] else []),
        f"num_q_heads {hq}", f"num_kv_heads {hkv}",
        f"head_dim {dk}", f"head_dim_v {dv}", f"soft_cap {int(cap)}", f"window_len {window}",
        f"num_rows {n}", f"sink {sink}", f"quantized {quantized}", f"num_queries {queries}",
        f"k_bits {bits[0]}", f"v_bits {bits[1]}",
        f"k_groups {groups[0]}", f"v_groups {groups[1]}",
        *([f"k_choices {k_heads[0]['choices'].size}"] if "choices" in k_heads[0] else []),
        f"num_samples {len(samples)}", "samples " + " ".join(map(str, samples)), "data", ""]
    text = "\n".join(lines).encode("ascii")
    return name, text + data + np.array([fnv(data)], "<u4").tobytes()


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "fixtures")
    total = 0
    made = [make(case) for case in CASES] + [make_real(case) for case in REAL_CASES]
    for name, data in made:
        with open(os.path.join(folder, f"codec_{name}.kvf"), "wb") as file:
            file.write(data)
        total += len(data)
    print(f"{len(made)} files, {total} bytes")


if __name__ == "__main__":
    main()
