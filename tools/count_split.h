// count_split.h -- where instructions lie: places that the counter stopped at, by function.
//
// A place is an address.  Functions of kernels are static, so they are read out of the ELF image
// that the address belongs to; whatever is elsewhere is the runtime's.  Functions are those that
// the compiler left: what it inlines counts for its caller.

#ifndef COUNT_SPLIT_H
#define COUNT_SPLIT_H

#if defined(__x86_64__) && defined(__linux__)
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { split_places = 1 << 16, split_functions = 256, split_name_bytes = 64 };

static struct {
    struct split_place {
        uint64_t at;
        int64_t  count;
    } places[split_places];
    struct split_function {
        char    name[split_name_bytes];
        int64_t count, dots;
    } functions[split_functions];
    int  num_functions;
    bool on;
    int  sign;                     // 1, or -1: a shorter sequence is taken off a longer one
} split;

static void split_add(uint64_t at)
{
    size_t i = (size_t)(at * 0x9e3779b97f4a7c15u >> 48);
    for (int n = 0; n < split_places; ++n, i = (i + 1) % split_places) {
        if (split.places[i].at && split.places[i].at != at) continue;
        split.places[i].at = at;
        split.places[i].count += split.sign;
        return;
    }
}

// Whether the instruction is an integer dot product: vpdpbusd, vpdpwssd and the like, in either
// encoding, vpmaddwd or vpmaddubsw.
static bool split_is_dot(const unsigned char* at)
{
    const bool evex = at[0] == 0x62, long_vex = at[0] == 0xc4, vex = at[0] == 0xc5;
    const int map = evex ? at[1] & 7 : long_vex ? at[1] & 31 : 1;
    const int code = evex ? at[4] : long_vex ? at[3] : at[2];
    if (!evex && !long_vex && !vex) return false;
    return map == 1 ? code == 0xf5 : map == 2 && ((code >= 0x50 && code <= 0x53) || code == 0x04);
}

static unsigned char* split_read(const char* path)
{
    FILE* file = fopen(path, "rb");
    unsigned char* bytes = NULL;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        const long size = ftell(file);
        rewind(file);
        if (size > 0) bytes = malloc((size_t)size);
        if (bytes && fread(bytes, 1, (size_t)size, file) != (size_t)size) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(file);
    return bytes;
}

// The function of an image that an address, counted from its base, lies in.
static void split_find(const unsigned char* image, uint64_t at, char* name)
{
    const Elf64_Ehdr* head = (const Elf64_Ehdr*)(const void*)image;
    const Elf64_Shdr* sections = (const Elf64_Shdr*)(const void*)(image + head->e_shoff);
    for (int i = 0; i < head->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym* symbols = (const Elf64_Sym*)(const void*)(image + sections[i].sh_offset);
        const char* names = (const char*)image + sections[sections[i].sh_link].sh_offset;
        for (uint64_t n = 0; n < sections[i].sh_size / sizeof *symbols; ++n)
            if (ELF64_ST_TYPE(symbols[n].st_info) == STT_FUNC && at >= symbols[n].st_value
                && at < symbols[n].st_value + symbols[n].st_size)
                snprintf(name, split_name_bytes, "%s", names + symbols[n].st_name);
    }
}

static struct split_function* split_function_of(const char* name)
{
    for (int i = 0; i < split.num_functions; ++i)
        if (strcmp(split.functions[i].name, name) == 0) return &split.functions[i];
    if (split.num_functions == split_functions) return &split.functions[0];
    struct split_function* f = &split.functions[split.num_functions++];
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    return f;
}

static int split_compare(const void* a, const void* b)
{
    const int64_t x = ((const struct split_function*)a)->count;
    const int64_t y = ((const struct split_function*)b)->count;
    return x < y ? 1 : x > y ? -1 : 0;
}

// Writes instructions a number by function, of `numbers` numbers, and forgets them.
static void split_write(FILE* out, double numbers)
{
    unsigned char* image = NULL;
    const void* base = NULL;
    Dl_info own, info;
    if (!dladdr((const void*)(uintptr_t)split_write, &own)) return;
    split.num_functions = 0;
    for (int i = 0; i < split_places; ++i) {
        const struct split_place* p = &split.places[i];
        char name[split_name_bytes] = "the runtime";
        if (p->count == 0) continue;
        if (dladdr((const void*)(uintptr_t)p->at, &info)
            && info.dli_fbase != own.dli_fbase) {
            if (info.dli_fbase != base) {
                free(image);
                image = split_read(info.dli_fname);
                base = info.dli_fbase;
            }
            if (image) split_find(image, p->at - (uint64_t)(uintptr_t)base, name);
        }
        struct split_function* f = split_function_of(name);
        f->count += p->count;
        if (split_is_dot((const unsigned char*)(uintptr_t)p->at)) f->dots += p->count;
    }
    free(image);
    qsort(split.functions, (size_t)split.num_functions, sizeof split.functions[0], split_compare);
    for (int i = 0; i < split.num_functions; ++i) {
        const struct split_function* f = &split.functions[i];
        if (f->count > 0)
            fprintf(out, "%10.4f %8.4f  %s\n", (double)f->count / numbers,
                    (double)f->dots / numbers, f->name);
    }
    memset(split.places, 0, sizeof split.places);
}
#endif

#endif
