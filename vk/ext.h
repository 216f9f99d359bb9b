// The C side of package vk: what github.com/vulkan-go/vulkan (Vulkan 1.1.88)
// lacks, and the calls for which its bindings are not usable:
//
//   - calls that take arrays of structs: vulkan-go frees the array's C copy in
//     a finalizer that may run while the driver still reads it;
//   - calls on the dispatch path, which must not allocate.
//
// Dispatchable Vulkan handles are void *, all others uint64_t (64-bit systems
// only). No Vulkan header is needed; every structure is declared in ext.c with
// its sType. Functions return a VkResult where they return int32_t.
#ifndef FLASHVK_EXT_H
#define FLASHVK_EXT_H

#include <stddef.h>
#include <stdint.h>

enum {
	FVK_MAX_BINDINGS = 32,    // storage buffers of one kernel
	FVK_MAX_PUSH_BYTES = 256, // push constants of one kernel
	FVK_NAME_BYTES = 256,     // VK_MAX_EXTENSION_NAME_SIZE, VK_MAX_DESCRIPTION_SIZE
};

// Loader -----------------------------------------------------------------

// fvk_load opens the Vulkan loader and returns its vkGetInstanceProcAddr, or
// NULL with the reason in err.
void *fvk_load(char *err, size_t err_bytes);

// fvk_loader_version returns the highest instance version of the loader.
uint32_t fvk_loader_version(void *gipa);

// fvk_proc looks up an instance function; instance may be NULL.
void *fvk_proc(void *gipa, void *instance, const char *name);

// Messages of the validation layer ----------------------------------------

typedef struct fvk_messages fvk_messages;
fvk_messages *fvk_messages_new(void);
void fvk_messages_free(fvk_messages *m);
// fvk_messages_take returns the oldest message, to be freed, or NULL.
char *fvk_messages_take(fvk_messages *m);

// Instance and device ------------------------------------------------------

typedef struct {
	uint32_t api_version;
	uint32_t validate;       // load the validation layer with synchronization checks
	uint32_t layer_settings; // configure it by VK_EXT_layer_settings, else VK_EXT_validation_features
} fvk_instance_info;

int32_t fvk_create_instance(void *gipa, const fvk_instance_info *info, fvk_messages *messages, void **instance, uint64_t *messenger);
void fvk_destroy_messenger(void *gipa, void *instance, uint64_t messenger);

// fvk_extensions returns the number of extensions of a device (device set), a
// layer (layer set) or the loader; names is room for *count names of
// FVK_NAME_BYTES, or NULL to ask for the count.
int32_t fvk_extensions(void *gipa, void *instance, void *device, const char *layer, uint32_t *count, char *names);

typedef struct { uint32_t flags, count, timestamp_bits; } fvk_queue_family;
void fvk_queue_families(void *gipa, void *instance, void *physical, uint32_t *count, fvk_queue_family *out);

// fvk_get2 calls vkGetPhysicalDevice{Features,Properties,MemoryProperties}2,
// whichever name says, on a pNext chain.
int32_t fvk_get2(void *gipa, void *instance, void *physical, const char *name, void *chain);

// fvk_enumerate calls a function of the form f(physical, *count, *structs).
int32_t fvk_enumerate(void *gipa, void *instance, void *physical, const char *name, uint32_t *count, void *out);

// fvk_create_device makes a device with one queue; names are num_names
// NUL-terminated extension names one after another, features a pNext chain.
int32_t fvk_create_device(void *gipa, void *instance, void *physical, uint32_t family, const char *names, uint32_t num_names, void *features, void **device);

// Device functions ---------------------------------------------------------

typedef struct fvk_api fvk_api;
// fvk_api_new looks up the device functions; NULL, with the name in *missing,
// if one is not there. Those of optional extensions may be absent.
fvk_api *fvk_api_new(void *gipa, void *instance, void *device, const char **missing);
void fvk_api_free(fvk_api *a);

typedef struct {
	uint64_t set_layout, layout, pipeline;
} fvk_kernel;

typedef struct {
	uint32_t num_bindings, push_bytes, num_spec, subgroup_size;
	uint32_t full_subgroups, capture_statistics;
	uint64_t cache;
} fvk_kernel_info;

// fvk_create_kernel makes layouts and pipeline; on failure nothing is left and
// *call names what failed. spec has one 32-bit word per constant_id.
int32_t fvk_create_kernel(const fvk_api *a, const fvk_kernel_info *info, const uint32_t *code, size_t code_bytes, const char *entry, const uint32_t *spec, fvk_kernel *out, const char **call);
void fvk_destroy_kernel(const fvk_api *a, const fvk_kernel *k);

typedef struct {
	char name[FVK_NAME_BYTES];
	uint32_t format, pad; // 0 bool, 1 int64, 2 uint64, 3 float64
	uint64_t bits;
} fvk_statistic;

// fvk_statistics reads the statistics of a pipeline's first executable.
int32_t fvk_statistics(const fvk_api *a, uint64_t pipeline, uint32_t *subgroup_size, uint32_t *count, fvk_statistic *out);

int32_t fvk_create_pool(const fvk_api *a, uint32_t sets, uint32_t buffers, uint64_t *pool);

// Commands -----------------------------------------------------------------

// fvk_buffer_range is a VkDescriptorBufferInfo.
typedef struct { uint64_t buffer, offset, bytes; } fvk_buffer_range;

typedef struct {
	uint64_t set_layout, layout, pipeline;
	uint32_t num_buffers, push_bytes;
	uint32_t groups[3], pad;
	fvk_buffer_range buffers[FVK_MAX_BINDINGS];
	uint64_t push[FVK_MAX_PUSH_BYTES / 8];
} fvk_dispatch;

// fvk_record_dispatch takes a descriptor set from pool, points it at the
// buffers and records a dispatch; an error means that the pool is exhausted.
int32_t fvk_record_dispatch(const fvk_api *a, void *cmd, uint64_t pool, const fvk_dispatch *d);
void fvk_barrier(const fvk_api *a, void *cmd, uint32_t src_stages, uint32_t src_access, uint32_t dst_stages, uint32_t dst_access);
// fvk_region is a VkBufferCopy.
typedef struct {
	uint64_t from, to, bytes;
} fvk_region;
void fvk_copy(const fvk_api *a, void *cmd, uint64_t dst, uint64_t src, uint32_t n, const fvk_region *regions);
void fvk_fill(const fvk_api *a, void *cmd, uint64_t buffer, uint64_t offset, uint64_t bytes, uint32_t word);
// fvk_update writes at most 65536 bytes that are recorded with the command.
void fvk_update(const fvk_api *a, void *cmd, uint64_t buffer, uint64_t offset, const void *data, uint64_t bytes);
void fvk_reset_queries(const fvk_api *a, void *cmd, uint64_t pool, uint32_t count);
void fvk_timestamp(const fvk_api *a, void *cmd, uint64_t pool, uint32_t index);

// fvk_submit submits cmd and has it set the timeline semaphore to value.
int32_t fvk_submit(const fvk_api *a, void *queue, void *cmd, uint64_t timeline, uint64_t value);
int32_t fvk_create_timeline(const fvk_api *a, uint64_t *timeline);
int32_t fvk_timeline_value(const fvk_api *a, uint64_t timeline, uint64_t *value);
int32_t fvk_timeline_wait(const fvk_api *a, uint64_t timeline, uint64_t value, uint64_t timeout_ns);
int32_t fvk_invalidate(const fvk_api *a, uint64_t memory);
void fvk_set_name(const fvk_api *a, uint32_t object_type, uint64_t handle, const char *name);

#endif
