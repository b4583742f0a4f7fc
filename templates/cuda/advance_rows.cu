// advance_rows.cu -- records of sequences take over the rows that were appended and encoded.

KERNEL advance_rows(const __grid_constant__ kvl__device_append a)
{
    for (int i = threadIdx.x; i < a.num_seqs; i += cta_threads) {
        kvl__device_seq* s = (kvl__device_seq*)a.items[i].seq;
        const int rows = (int)s->rows + a.items[i].num_rows;
        s->quantized = quantized_rows(s, a.windows, rows);
        s->rows = rows;
    }
}
