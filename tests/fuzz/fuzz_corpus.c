// fuzz_corpus.c -- runs a fuzzer's target on the files of folders: the fixed corpus, without
// libFuzzer.
//
//     fuzz_load tests/fuzz/corpus/load
//
// Breaks when one of the inputs that once reached something new does harm: a crash, a sanitizer's
// word, a broken invariant.

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

enum { most_bytes = 1 << 20 };

static int run_file(const char* path)
{
    static uint8_t data[most_bytes];
    FILE* file = fopen(path, "rb");
    if (!file) return 0;
    const size_t size = fread(data, 1, most_bytes, file);
    fclose(file);
    // A copy of its own size, so that a sanitizer sees what is read beyond it.
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    if (!copy) return 0;
    for (size_t i = 0; i < size; ++i) copy[i] = data[i];
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 1;
}

int main(int argc, char** argv)
{
    int num = 0;
    for (int i = 1; i < argc; ++i) {
        DIR* folder = opendir(argv[i]);
        if (!folder) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 1;
        }
        for (const struct dirent* entry = readdir(folder); entry; entry = readdir(folder)) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            num += run_file(path);
        }
        closedir(folder);
    }
    printf("%d inputs\n", num);
    return num == 0;
}
