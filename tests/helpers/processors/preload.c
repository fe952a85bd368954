// SPDX-License-Identifier: Apache-2.0
// An x86-64 processor with AVX2 and nothing newer, for a program whose `cpuid` instructions are breakpoints
// (see __init__.py): each is answered as the real one would, without the newer instruction sets. /proc/cpuinfo is
// that of AS_PROCESSOR_CPUINFO.
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define BIT(n) (1u << (n))

// Intel's manual, volume 2A, CPUID; leaf 7 has all that is newer than AVX2.
static const unsigned hidden[2][4] = {
    // Subleaf 0. EBX: AVX512 F, DQ, IFMA, PF, ER, CD, BW, VL.
    {0, BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31),
     // ECX: AVX512 VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ. EDX: 4VNNIW, 4FMAPS, VP2INTERSECT, AMX BF16, FP16, TILE, INT8.
     BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14),
     BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)},
    // Subleaf 1. EAX: AVX VNNI, AVX512 BF16, AMX FP16, AVX IFMA. EDX: AVX VNNI INT8, NE CONVERT, AMX COMPLEX,
    // AVX VNNI INT16, AVX10.
    {BIT(4) | BIT(5) | BIT(21) | BIT(23), 0, 0, BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19)},
};

static void answer(int number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *next = (const unsigned char *)registers[REG_RIP];
  if (next[-1] != 0xCC || next[0] != 0x90) { // somebody else's
    signal(number, SIG_DFL);
    return;
  }
  unsigned leaf = registers[REG_RAX], subleaf = registers[REG_RCX], made[4];
  __cpuid_count(leaf, subleaf, made[0], made[1], made[2], made[3]);
  for (int i = 0; leaf == 7 && subleaf < 2 && i < 4; i++)
    made[i] &= ~hidden[subleaf][i];
  registers[REG_RAX] = made[0];
  registers[REG_RBX] = made[1];
  registers[REG_RCX] = made[2];
  registers[REG_RDX] = made[3];
}

__attribute__((constructor)) static void listen(void) {
  struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGTRAP, &action, NULL);
}

static const char *seen(const char *path) {
  const char *described = getenv("AS_PROCESSOR_CPUINFO");
  return described && strcmp(path, "/proc/cpuinfo") == 0 ? described : path;
}

#define OPEN(name)                                                                                  \
  int name(const char *path, int flags, ...) {                                                      \
    static int (*next)(const char *, int, ...);                                                     \
    va_list rest;                                                                                   \
    va_start(rest, flags);                                                                          \
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;                             \
    va_end(rest);                                                                                   \
    if (!next)                                                                                      \
      next = dlsym(RTLD_NEXT, #name);                                                               \
    return next(seen(path), flags, mode);                                                           \
  }
OPEN(open)
OPEN(open64)
