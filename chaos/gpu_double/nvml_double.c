/* A FAKE of NVIDIA's libnvidia-ml.so.1, for tests and experiments. It manages no hardware and knows none.
 *
 * It exports the symbols that engine/gpu/nvml.py calls through the real pynvml, and answers from a control file
 * named by NVML_DOUBLE. The file is read again at every call, so a test changes it while a process runs:
 *
 *     gpus 2                                      number of GPUs
 *     0.temperature 55                            a value of GPU 0 (`*` instead of 0: of every GPU)
 *     return.nvmlDeviceGetTemperature 3           this call fails with that nvmlReturn_t
 *     0.return.nvmlDeviceGetTemperature 15        the same, for GPU 0 only
 *     block.nvmlDeviceGetTemperature 1            this call does not come back while the line stands
 *     xid 1 0 79 -1                               XID number 1: GPU 0, code 79, GPU instance (-1: none)
 *
 * XIDs are numbered from 1 and each is delivered once, as an edge, like the driver does. Missing symbols are
 * made by the linker: a version script hides them.
 *
 * Signatures and structures: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10 };
enum { MAX_GPUS = 8, MAX_LINKS = 18 };

typedef struct { int gpu; int instance; } Device; /* instance -1: the whole board */
static Device boards[MAX_GPUS], slices[MAX_GPUS];
static int delivered; /* the number of the last XID handed out */

static int lookup(const char *key, char *value, size_t size) {
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    int found = 0;
    size_t length = strlen(key);
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1; /* the last line wins */
        }
    }
    if (file) fclose(file);
    return found;
}

static int text(int gpu, const char *name, char *value, size_t size) {
    char key[128];
    snprintf(key, sizeof key, "%d.%s", gpu, name);
    if (gpu >= 0 && lookup(key, value, size)) return 1;
    snprintf(key, sizeof key, "*.%s", name);
    return lookup(key, value, size);
}

static long long number(int gpu, const char *name, long long otherwise) {
    char value[64];
    return text(gpu, name, value, sizeof value) ? strtoll(value, NULL, 0) : otherwise;
}

/* What every call does first: block while told to, fail if told to. */
static int enter(const char *call, int gpu) {
    char key[128], value[64];
    snprintf(key, sizeof key, "block.%s", call);
    while (lookup(key, value, sizeof value)) usleep(5000);
    snprintf(key, sizeof key, "return.%s", call);
    if (gpu >= 0 && text(gpu, key, value, sizeof value)) return atoi(value);
    return lookup(key, value, sizeof value) ? atoi(value) : OK;
}

static int of(Device *device) { return device ? device->gpu : -1; }
#define ENTER(gpu) do { int code = enter(__func__, gpu); if (code) return code; } while (0)
#define HAVE(gpu, name) do { char v[64]; if (!text(gpu, name, v, sizeof v)) return UNSUPPORTED; } while (0)
#define UINT(call, name) int call(Device *d, unsigned *out) { \
    ENTER(of(d)); HAVE(of(d), name); *out = number(of(d), name, 0); return OK; }
#define UINT_OF_KIND(call, prefix) int call(Device *d, unsigned kind, unsigned *out) { \
    char name[64]; snprintf(name, sizeof name, prefix "%u", kind); \
    ENTER(of(d)); HAVE(of(d), name); *out = number(of(d), name, 0); return OK; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (int at = 0; at < MAX_GPUS; at++) {
        boards[at] = (Device){at, -1};
        slices[at] = (Device){at, (int)number(at, "slice", 0)};
    }
    ENTER(-1);
    return OK;
}
int nvmlShutdown(void) { ENTER(-1); return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the double"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(-1);
    if (!lookup("driver", out, size)) snprintf(out, size, "0.0.double");
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(-1); *out = (unsigned)number(-1, "none", 0);
    char value[16]; *out = lookup("gpus", value, sizeof value) ? atoi(value) : 0; return OK; }
static int count(void) { char value[16]; return lookup("gpus", value, sizeof value) ? atoi(value) : 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    ENTER((int)index);
    if ((int)index >= count()) return INVALID;
    *out = &boards[index];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    ENTER(-1);
    int mig = !strncmp(uuid, "MIG-", 4), at = -1;
    if (sscanf(uuid, mig ? "MIG-double-%d" : "GPU-double-%d", &at) != 1 || at < 0 || at >= count()) return NOT_FOUND;
    *out = mig ? &slices[at] : &boards[at];
    return OK;
}
int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) {
    ENTER(of(d));
    snprintf(out, size, "%s-double-%d", d->instance < 0 ? "GPU" : "MIG", d->gpu);
    return OK;
}
int nvmlDeviceGetName(Device *d, char *out, unsigned size) {
    ENTER(of(d)); snprintf(out, size, "Double 9000"); return OK;
}
typedef struct {
    char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32];
} Pci;
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *out) {
    ENTER(of(d));
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", d->gpu + 1);
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *d, Device **out) {
    ENTER(of(d)); *out = &boards[d->gpu]; return OK;
}
UINT(nvmlDeviceGetGpuInstanceId, "slice")
UINT_OF_KIND(nvmlDeviceGetTemperature, "temperature")
UINT_OF_KIND(nvmlDeviceGetTemperatureThreshold, "threshold")
UINT(nvmlDeviceGetPowerUsage, "power_mw")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
UINT_OF_KIND(nvmlDeviceGetClockInfo, "clock")
UINT_OF_KIND(nvmlDeviceGetMaxClockInfo, "max_clock")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retirement_pending")
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *out) {
    ENTER(of(d)); HAVE(of(d), "throttle"); *out = number(of(d), "throttle", 0); return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *out) {
    ENTER(of(d)); HAVE(of(d), "throttle"); *out = number(of(d), "throttle", 0); return OK;
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned out[2]) {
    ENTER(of(d)); HAVE(of(d), "utilisation");
    out[0] = number(of(d), "utilisation", 0); out[1] = number(of(d), "memory_utilisation", 0);
    return OK;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned long long total, free, used; } Memory1;
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *out) {
    ENTER(of(d)); HAVE(of(d), "memory_total");
    if (out->version != (sizeof(Memory2) | 2u << 24)) return 25; /* version mismatch */
    out->total = number(of(d), "memory_total", 0); out->reserved = number(of(d), "memory_reserved", 0);
    out->used = number(of(d), "memory_used", 0); out->free = out->total - out->used - out->reserved;
    return OK;
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory1 *out) {
    ENTER(of(d)); HAVE(of(d), "memory_total");
    out->total = number(of(d), "memory_total", 0); out->used = number(of(d), "memory_used", 0);
    out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetEccMode(Device *d, unsigned *now, unsigned *later) {
    ENTER(of(d)); HAVE(of(d), "ecc"); *now = *later = number(of(d), "ecc", 0); return OK;
}
int nvmlDeviceGetTotalEccErrors(Device *d, unsigned uncorrected, unsigned aggregate, unsigned long long *out) {
    ENTER(of(d)); HAVE(of(d), "ecc");
    const char *names[2][2] = {{"ecc_corrected", "ecc_corrected_total"}, {"ecc_uncorrected", "ecc_uncorrected_total"}};
    *out = number(of(d), names[uncorrected][aggregate], 0);
    return OK;
}
int nvmlDeviceGetRemappedRows(Device *d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    ENTER(of(d)); HAVE(of(d), "rows_uncorrectable");
    *corr = number(of(d), "rows_correctable", 0); *unc = number(of(d), "rows_uncorrectable", 0);
    *pending = number(of(d), "rows_pending", 0); *failed = number(of(d), "rows_failed", 0);
    return OK;
}
int nvmlDeviceGetRetiredPages(Device *d, unsigned cause, unsigned *count, unsigned long long *pages) {
    ENTER(of(d)); HAVE(of(d), "retired0");
    unsigned have = number(of(d), cause ? "retired1" : "retired0", 0), room = *count;
    *count = have;
    if (have > room) return TOO_SMALL;
    for (unsigned at = 0; pages && at < have; at++) pages[at] = 4096ull * (at + 1);
    return OK;
}
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *out) {
    ENTER(of(d)); HAVE(of(d), "links");
    if (link >= number(of(d), "links", 0)) return INVALID;
    *out = !(number(of(d), "links_down", 0) >> link & 1); /* a bit mask */
    return OK;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *later) {
    ENTER(of(d)); HAVE(of(d), "mig"); *now = *later = number(of(d), "mig", 0); return OK;
}
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *out) {
    ENTER(of(d));
    unsigned have = number(of(d), "pid", 0) != 0;
    if (!have) { *count = 0; return OK; }
    if (*count < have || !out) { *count = have; return TOO_SMALL; }
    out[0] = (Process){number(of(d), "pid", 0), number(of(d), "pid_memory", -1), ~0u, ~0u};
    *count = have;
    return OK;
}
typedef struct {
    unsigned field, scope; long long stamp, latency; unsigned type; int code; union { unsigned ui; unsigned long long ull; } value;
} Field;
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
    ENTER(of(d));
    for (int at = 0; at < count; at++) {
        char name[32], value[64];
        snprintf(name, sizeof name, "field%u", fields[at].field);
        fields[at].code = text(of(d), name, value, sizeof value) ? OK : UNSUPPORTED;
        fields[at].type = fields[at].field == 82 || fields[at].field == 230 ? 1 : 3;
        fields[at].value.ull = 0;
        if (fields[at].code == OK) {
            if (fields[at].type == 1) fields[at].value.ui = strtoul(value, NULL, 0);
            else fields[at].value.ull = strtoull(value, NULL, 0);
        }
    }
    return OK;
}
static int event_set;
int nvmlEventSetCreate(void **out) { ENTER(-1); *out = &event_set; return OK; }
int nvmlEventSetFree(void *set) { (void)set; ENTER(-1); return OK; }
int nvmlDeviceGetSupportedEventTypes(Device *d, unsigned long long *out) {
    ENTER(of(d)); *out = number(of(d), "events", 0x1f); return OK;
}
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set) {
    (void)set; (void)types; ENTER(of(d)); return OK;
}
typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } Event;
int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0;; waited += 5) {
        ENTER(-1);
        const char *path = getenv("NVML_DOUBLE");
        FILE *file = path ? fopen(path, "r") : NULL;
        char line[256];
        while (file && fgets(line, sizeof line, file)) {
            int serial, gpu, code, instance;
            if (sscanf(line, "xid %d %d %d %d", &serial, &gpu, &code, &instance) == 4 && serial == delivered + 1) {
                delivered = serial;
                fclose(file);
                *out = (Event){gpu < 0 ? (Device *)&event_set : &boards[gpu], 8, code, instance, ~0u};
                return OK;
            }
        }
        if (file) fclose(file);
        if (waited >= timeout_ms) return TIMED_OUT;
        usleep(5000);
    }
}
