/* Counts the bytes of heap that this process holds, now and at most, in blocks of at least 16 KiB, on all threads.

   Preloaded (LD_PRELOAD), these functions stand in front of glibc's own and keep a sum of what the blocks really have
   (malloc_usable_size). Tensors of C++ that no Python sees are in it, such as DDP's buckets and gloo's scratch; small
   blocks are not, so that counting costs nothing that can be measured. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

enum { SMALLEST = 16 << 10 };

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static _Atomic long held, most;

long heap_held(void) { return atomic_load(&held); }
long heap_peak(void) { return atomic_load(&most); }
void heap_reset_peak(void) { atomic_store(&most, atomic_load(&held)); }

static long size_of(void *block) {
  size_t size = block ? malloc_usable_size(block) : 0;
  return size < SMALLEST ? 0 : (long)size;
}

/* Also called for memory that did not come from malloc: bytes taken, or minus those given back. */
void heap_count(long size) {
  long now = atomic_fetch_add(&held, size) + size, top = atomic_load(&most);
  while (now > top && !atomic_compare_exchange_weak(&most, &top, now)) {}
}

static void *taken(void *block) {
  long size = size_of(block);
  if (size) heap_count(size);
  return block;
}

void *malloc(size_t size) { return taken(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return taken(__libc_calloc(count, size)); }
void *memalign(size_t boundary, size_t size) { return taken(__libc_memalign(boundary, size)); }
void *aligned_alloc(size_t boundary, size_t size) { return memalign(boundary, size); }

int posix_memalign(void **out, size_t boundary, size_t size) {
  void *block = memalign(boundary, size);
  if (block) *out = block;
  return block ? 0 : ENOMEM;
}

void free(void *block) {
  long size = size_of(block);
  if (size) atomic_fetch_sub(&held, size);
  __libc_free(block);
}

void *realloc(void *block, size_t size) {
  long before = size_of(block);
  void *moved = __libc_realloc(block, size);
  if (before && (moved || !size)) atomic_fetch_sub(&held, before); /* on failure the old block stays */
  return taken(moved);
}
