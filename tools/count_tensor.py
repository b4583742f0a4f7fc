#!/usr/bin/env python3
"""count_tensor.py -- instructions a value of attention by tensor cores, from the disassembly.

    count_tensor.py [--compare tests/golden/tensor.txt] [-o FILE] --cache build/bin/kvloom-cache

For each configuration kvloom-cache makes the sm_90 cubin (no device is needed), nvdisasm takes it
apart, and the loop over steps is the shortest way from its last product by tensor cores through a
copy into shared memory back to that product: what a step in the middle of a split issues, with
instructions whose predicate is false.  A step that goes on to another page takes the way through
the load of a page's address too: the count is the mean over the steps of a page.  A step is 32
tokens, so a lane has head_dim_k + head_dim_v values of it.  Status 1 if a count is above the
table's, a kernel spills or two CTAs find no room on a multiprocessor, 77 without NVRTC or nvdisasm
(in PATH, in KVLOOM_NVDISASM, in build-test/nvdisasm of tools/setup.sh, or from `pip install
nvidia-cuda-nvdisasm`), and with another NVRTC than the table's.
"""
import collections
import ctypes
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

# Spec, query heads, head dim, bytes of a row in pages.
CONFIGS = [('kivi:k2,v2,g32', 1, 128, 80), ('kivi:k2,v2,g32', 4, 128, 80),
           ('kivi:k2,v2,g32', 8, 128, 80), ('kivi:k2,v2,g32', 16, 128, 80),
           ('kivi:k2,v2,g64', 8, 128, 72), ('kivi:k2,v2,g32', 8, 64, 40),
           ('kivi:k4,v4,g32', 8, 128, 144), ('kivi:k2,v2,g32,meta=f16', 8, 128, 96),
           ('loom', 4, 128, 72), ('flagrot-kivi:k2,v2,g32', 4, 128, 80),
           ('flagrot-kivi:k2,v2,g32', 8, 128, 80), ('rtn:k2,v2,g32', 4, 128, 80),
           ('quest', 4, 128, 68), ('quest', 8, 128, 68), ('wush', 4, 128, 72),
           ('wush', 8, 128, 72)]
PAGE_ROWS = 64                                       # of these configurations
SLACK = 0.03                                         # of another build of the compiler
# What an H200's memory gives a multiprocessor, bytes a clock: 52.6 values of 2.5 bits.
COPY_RATE = 52.6 * 2.5 / 8
ALU_MOST = 85                                        # percent
# Not the ALU's, which takes an instruction in two clocks: tensor cores, memory, the units of
# multiply-adds and of exponents, the uniform datapath, control.
NOT_ALU = re.compile(
    r'^(HMMA|IMMA|LD|ST|RED|ATOM|FFMA|FMUL|FADD|HFMA2|HMUL2|HADD2|IMAD|MUFU|U[A-Z]|R2UR|S2|CS2R|'
    r'BRA|BSYNC|BSSY|BAR|WARPSYNC|EXIT|RET|CALL|NOP|DEPBAR|SHFL|VOTE|MOVM|MEMBAR|ERRBAR)')


def nvrtc_version():
    """Of the NVRTC that kvloom finds; None: none."""
    for place in (os.environ.get('KVLOOM_NVRTC'), os.environ.get('CUDA_PATH'),
                  '/usr/local/cuda/lib64', *glob.glob('build-test/nvrtc/nvidia/*/lib')):
        for path in sorted(glob.glob((place or '/none') + '/libnvrtc.so.1[23]')) or [place or '']:
            major, minor = ctypes.c_int(), ctypes.c_int()
            if os.path.isfile(path) and ctypes.CDLL(path).nvrtcVersion(
                    ctypes.byref(major), ctypes.byref(minor)) == 0:
                return '%d.%d' % (major.value, minor.value)
    return None


def find_nvdisasm():
    found = os.environ.get('KVLOOM_NVDISASM') or shutil.which('nvdisasm')
    for path in ['build-test/nvdisasm'] + sys.path:
        for name in glob.glob(path + '/nvidia/**/bin/nvdisasm', recursive=True):
            found = found or name
    return found


def make_cubin(cache, folder, config):
    spec, heads, dim, _ = config
    run = subprocess.run([cache, '--dir', folder, '--target', 'cuda', '--arch', 'sm_90',
                          '--q-heads', str(heads), '--kv-heads', '1', '--head-dim', str(dim),
                          'warm', spec], capture_output=True, text=True)
    names = glob.glob(folder + '/*/attend_splits-*.cubin')
    if 'NVRTC' in run.stderr and not names:
        print('no NVRTC')
        sys.exit(77)
    if len(names) != 1:
        sys.exit('%s: %s%s' % (spec, run.stdout, run.stderr))
    return names[0]


def payload(path):
    """The ELF file within an entry of the cache."""
    with open(path, 'rb') as f:
        data = f.read()
    return data[data.index(b'\x7fELF'):]


def disassemble(nvdisasm, binary):
    with tempfile.NamedTemporaryFile(suffix='.cubin') as f:
        f.write(binary)
        f.flush()
        text = subprocess.run([nvdisasm, '-c', f.name], capture_output=True, text=True,
                              check=True).stdout
    code, labels = [], {}
    for line in text.splitlines():
        label = re.match(r'^(\.L_\w+):', line.strip())
        if label:
            labels[label.group(1)] = len(code)
        found = re.search(r'/\*[0-9a-f]{4,}\*/\s+(.*?);', line)
        if found:
            code.append(found.group(1).strip())
    return code, labels


def successors(code, labels, at):
    text = code[at]
    name = re.sub(r'^@!?U?P\w+\s+', '', text)
    if name.startswith(('EXIT', 'RET')):
        return [at + 1] if text[0] == '@' else []
    if not name.startswith('BRA') or name.startswith('BRA.DIV'):
        return [at + 1]
    target = re.search(r'`\((\.L_\w+)\)', text)
    to = [labels[target.group(1)]] if target else []
    if text[0] == '@' or re.search(r'BRA(\.\w+)*\s+!?U?P\d', name):
        to.append(at + 1)
    return to


def shortest(code, labels, start, is_goal):
    before, queue = {start: None}, collections.deque([start])
    while queue:
        at = queue.popleft()
        for to in successors(code, labels, at):
            if to >= len(code):
                continue
            if is_goal(to):
                way = [to]
                while at is not None:
                    way.append(at)
                    at = before[at]
                return way[:0:-1] if to == start else way[::-1]
            if to not in before:
                before[to] = at
                queue.append(to)
    return []


def way_through(code, labels, goals):
    """The shortest way from goals[-1] through each of the others back to it."""
    way, at = [], goals[-1](None)
    for is_goal in [*goals[:-1], lambda i: i == goals[-1](None)]:
        part = shortest(code, labels, at, is_goal)
        if not part:
            return []
        way, at = way + part[:-1], part[-1]
    return way


def is_alu(text):
    return not NOT_ALU.match(re.sub(r'^@!?U?P\w+\s+', '', text))


def count(code, labels):
    """Of a step: instructions, the mean of those of a page; among those of a step that stays on
    its page, products and the ALU's."""
    products = [i for i, text in enumerate(code) if 'HMMA' in text]
    if not products:
        return 0, 0, 0
    copies, last = lambda i: 'LDGSTS' in code[i], lambda _: products[-1]
    way = way_through(code, labels, [copies, last])
    turns = [way_through(code, labels, [lambda i, load=load: i == load, copies, last])
             for load, text in enumerate(code) if re.search(r'\bLDG?\.E\.64', text)]
    turn = min((len(turn) for turn in turns if turn), default=0)
    steps = PAGE_ROWS // 32
    return ((len(way) * (steps - 1) + max(turn, len(way))) / steps,
            sum('HMMA' in code[i] for i in way), sum(is_alu(code[i]) for i in way))


def resources(binary):
    """Registers and bytes of shared memory, from the sections of an ELF file."""
    table, = struct.unpack_from('<Q', binary, 40)
    size, num, names = struct.unpack_from('<HHH', binary, 58)
    sections = [struct.unpack_from('<IIQQQQIIQQ', binary, table + i * size) for i in range(num)]
    found = {}
    for section in sections:
        at = sections[names][4] + section[0]
        found[binary[at:binary.index(b'\0', at)].decode()] = section
    shared = found.get('.nv.shared.attend_splits')
    info = found['.nv.info']                         # attribute 2f of a function: its registers
    at = binary.index(b'\x04\x2f\x08\x00', info[4], info[4] + info[5])
    return struct.unpack_from('<I', binary, at + 8)[0], shared[5] if shared else 0


def ctas_of(registers, shared):
    """CTAs of 128 threads of an sm_90: 64 K registers, 8 a thread at a time; 228 KB."""
    return min(65536 // (128 * (registers + 7 & ~7)), 228 * 1024 // (shared + 1024))


def row_of(cache, nvdisasm, config):
    folder = tempfile.mkdtemp()
    try:
        binary = payload(make_cubin(cache, folder, config))
    finally:
        shutil.rmtree(folder)
    code, labels = disassemble(nvdisasm, binary)
    instructions, products, alu = count(code, labels)
    registers, shared = resources(binary)
    spec, heads, dim, row_bytes = config
    clocks = 32 * row_bytes / (COPY_RATE / 4)        # of a step: a quarter of a multiprocessor
    return '%7.3f %6.1f %5d %5d %5.1f %6d %6d %7d %5d  %s %d 1 %d' % (
        instructions / (2.0 * dim), instructions, products, alu, 200 * alu / clocks, registers,
        sum(bool(re.search(r'\b(STL|LDL)\b', text)) for text in code), shared,
        ctas_of(registers, shared), spec, heads, dim)


HEADER = '''# tensor.txt -- written by tools/count_tensor.py with NVRTC %s: tensor-core attention,
# sm_90, a step of 32 tokens of one warp: instructions a value of a lane, in all (the mean of the
# steps of a page), products and the ALU's among them, percent of the time that the ALU has at the
# rate at which an H200 copies; of the kernel registers, instructions that spill, bytes of shared
# memory, CTAs a multiprocessor.  No GPU has confirmed anything here.
# a value in all  mma   ALU    %%   regs spills  shared  CTAs  spec, query heads, KV heads, head dim
'''


def compare(rows, path, version):
    with open(path) as f:
        made_with = re.search(r'NVRTC ([\d.]+)', f.readline()).group(1)
        if made_with != version:
            print('%s was made with NVRTC %s, this is %s' % (path, made_with, version))
            return 77
        known = {name_of(line): float(line.split()[0]) for line in f if line[0] != '#'}
    bad = 0
    for row in rows:
        name, value, busy, spills, ctas = (
            name_of(row), *(float(row.split()[i]) for i in (0, 4, 6, 8)))
        if name not in known or value > known[name] + SLACK:
            print('%s: %.3f instructions a value, %s in %s' % (name, value, known.get(name), path))
            bad = 1
        if spills > 0 or ctas < 2:
            print('%s: %d spills, %d CTAs a multiprocessor' % (name, spills, ctas))
            bad = 1
        if busy > ALU_MOST:
            print('%s: the ALU needs %.1f %% of the time that copying takes' % (name, busy))
            bad = 1
    return bad


def name_of(row):
    return ' '.join(row.split()[9:])


def main():
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    cache, nvdisasm = options.get('--cache', 'build/bin/kvloom-cache'), find_nvdisasm()
    if not nvdisasm:
        print('no nvdisasm')
        sys.exit(77)
    version = nvrtc_version()
    rows = [row_of(cache, nvdisasm, config) for config in CONFIGS]
    text = HEADER % version + '\n'.join(rows) + '\n'
    if '-o' in options:
        with open(options['-o'], 'w') as f:
            f.write(text)
    else:
        sys.stdout.write(text)
    sys.exit(compare(rows, options['--compare'], version) if '--compare' in options else 0)


if __name__ == '__main__':
    main()
