#include "ext.h"

#include <stdlib.h>
#include <string.h>

// Device functions; see ext.c for the conventions.

typedef struct { int32_t s_type; const void *next; } base;
typedef struct { base b; uint32_t flags; size_t code_bytes; const uint32_t *code; } module_info; // 16
typedef struct { uint32_t id, offset; size_t size; } spec_entry;
typedef struct { uint32_t count; const spec_entry *entries; size_t bytes; const void *data; } spec_info;
typedef struct { base b; uint32_t flags, stage; uint64_t module; const char *name; const spec_info *spec; } stage_info; // 18
typedef struct { base b; uint32_t flags; stage_info stage; uint64_t layout, base_pipeline; int32_t base_index; } pipeline_info; // 29
typedef struct { base b; uint32_t size; } required_subgroup_size; // 1000225001
typedef struct { uint32_t binding, type, count, stages; const void *samplers; } layout_binding;
typedef struct { base b; uint32_t flags, count; const layout_binding *bindings; } set_layout_info; // 32
typedef struct { uint32_t stages, offset, size; } push_range;
typedef struct { base b; uint32_t flags, num_sets; const uint64_t *sets; uint32_t num_ranges; const push_range *ranges; } layout_info; // 30
typedef struct { uint32_t type, count; } pool_size;
typedef struct { base b; uint32_t flags, sets, num_sizes; const pool_size *sizes; } pool_info; // 33
typedef struct { base b; uint64_t pool; uint32_t count; const uint64_t *layouts; } set_info; // 34
typedef struct { base b; uint64_t set; uint32_t binding, element, count, type; const void *images; const fvk_buffer_range *buffers; const void *views; } set_write; // 35
typedef struct { base b; uint32_t src_access, dst_access; } memory_barrier; // 46
typedef struct { base b; uint32_t num_waits; const uint64_t *waits; const uint32_t *wait_stages; uint32_t num_cmds; void *const *cmds; uint32_t num_signals; const uint64_t *signals; } submit_info; // 4
typedef struct { base b; uint32_t num_waits; const uint64_t *waits; uint32_t num_signals; const uint64_t *signals; } timeline_submit_info; // 1000207003
typedef struct { base b; int32_t type; uint64_t initial; } semaphore_type_info; // 1000207002
typedef struct { base b; uint32_t flags; } semaphore_info; // 9
typedef struct { base b; uint32_t flags, count; const uint64_t *semaphores, *values; } wait_info; // 1000207004
typedef struct { base b; uint64_t memory, offset, bytes; } mapped_range; // 6
typedef struct { base b; int32_t type; uint64_t handle; const char *name; } name_info; // 1000128000
typedef struct { base b; uint64_t pipeline; } executable_pipeline; // 1000269001
typedef struct { base b; uint32_t stages; char name[FVK_NAME_BYTES], description[FVK_NAME_BYTES]; uint32_t subgroup_size; } executable; // 1000269002
typedef struct { base b; uint64_t pipeline; uint32_t index; } executable_info; // 1000269003
typedef struct { base b; char name[FVK_NAME_BYTES], description[FVK_NAME_BYTES]; uint32_t format; uint64_t value; } executable_statistic; // 1000269004

enum {
	STORAGE_BUFFER = 7, // VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
	COMPUTE_STAGE = 0x20, // VK_SHADER_STAGE_COMPUTE_BIT
	COMPUTE_BIND_POINT = 1,
};

// FUNCTIONS lists name, result and parameters of each function.
#define FUNCTIONS(F) \
	F(CreateShaderModule, int32_t, (void *, const module_info *, const void *, uint64_t *)) \
	F(DestroyShaderModule, void, (void *, uint64_t, const void *)) \
	F(CreateDescriptorSetLayout, int32_t, (void *, const set_layout_info *, const void *, uint64_t *)) \
	F(DestroyDescriptorSetLayout, void, (void *, uint64_t, const void *)) \
	F(CreatePipelineLayout, int32_t, (void *, const layout_info *, const void *, uint64_t *)) \
	F(DestroyPipelineLayout, void, (void *, uint64_t, const void *)) \
	F(CreateComputePipelines, int32_t, (void *, uint64_t, uint32_t, const pipeline_info *, const void *, uint64_t *)) \
	F(DestroyPipeline, void, (void *, uint64_t, const void *)) \
	F(CreateDescriptorPool, int32_t, (void *, const pool_info *, const void *, uint64_t *)) \
	F(AllocateDescriptorSets, int32_t, (void *, const set_info *, uint64_t *)) \
	F(UpdateDescriptorSets, void, (void *, uint32_t, const set_write *, uint32_t, const void *)) \
	F(CmdBindPipeline, void, (void *, int32_t, uint64_t)) \
	F(CmdBindDescriptorSets, void, (void *, int32_t, uint64_t, uint32_t, uint32_t, const uint64_t *, uint32_t, const uint32_t *)) \
	F(CmdPushConstants, void, (void *, uint64_t, uint32_t, uint32_t, uint32_t, const void *)) \
	F(CmdDispatch, void, (void *, uint32_t, uint32_t, uint32_t)) \
	F(CmdPipelineBarrier, void, (void *, uint32_t, uint32_t, uint32_t, uint32_t, const memory_barrier *, uint32_t, const void *, uint32_t, const void *)) \
	F(CmdCopyBuffer, void, (void *, uint64_t, uint64_t, uint32_t, const fvk_region *)) \
	F(CmdFillBuffer, void, (void *, uint64_t, uint64_t, uint64_t, uint32_t)) \
	F(CmdUpdateBuffer, void, (void *, uint64_t, uint64_t, uint64_t, const void *)) \
	F(CmdResetQueryPool, void, (void *, uint64_t, uint32_t, uint32_t)) \
	F(CmdWriteTimestamp, void, (void *, uint32_t, uint64_t, uint32_t)) \
	F(QueueSubmit, int32_t, (void *, uint32_t, const submit_info *, uint64_t)) \
	F(CreateSemaphore, int32_t, (void *, const semaphore_info *, const void *, uint64_t *)) \
	F(GetSemaphoreCounterValue, int32_t, (void *, uint64_t, uint64_t *)) \
	F(WaitSemaphores, int32_t, (void *, const wait_info *, uint64_t)) \
	F(InvalidateMappedMemoryRanges, int32_t, (void *, uint32_t, const mapped_range *))

// OPTIONAL functions belong to extensions and may be NULL.
#define OPTIONAL(F) \
	F(SetDebugUtilsObjectNameEXT, int32_t, (void *, const name_info *)) \
	F(GetPipelineExecutablePropertiesKHR, int32_t, (void *, const executable_pipeline *, uint32_t *, executable *)) \
	F(GetPipelineExecutableStatisticsKHR, int32_t, (void *, const executable_info *, uint32_t *, executable_statistic *))

#define MEMBER(name, result, params) result (*name) params;
struct fvk_api {
	void *device;
	FUNCTIONS(MEMBER)
	OPTIONAL(MEMBER)
};

fvk_api *fvk_api_new(void *gipa, void *instance, void *device, const char **missing) {
	void *(*proc)(void *, const char *) = fvk_proc(gipa, instance, "vkGetDeviceProcAddr");
	fvk_api *a = calloc(1, sizeof *a);
	*missing = "vkGetDeviceProcAddr";
	if (!a || !proc) goto fail;
	a->device = device;
#define LOOK_UP(name, result, params) a->name = (result (*) params)proc(device, "vk" #name);
#define NEED(name, result, params) *missing = "vk" #name; LOOK_UP(name, result, params) if (!a->name) goto fail;
	FUNCTIONS(NEED)
	OPTIONAL(LOOK_UP)
	return a;
fail:
	free(a);
	return NULL;
}

void fvk_api_free(fvk_api *a) { free(a); }

// Kernels --------------------------------------------------------------------

int32_t fvk_create_kernel(const fvk_api *a, const fvk_kernel_info *info, const uint32_t *code, size_t code_bytes, const char *entry, const uint32_t *spec, fvk_kernel *out, const char **call) {
	int32_t r = 0;
	uint64_t module = 0;
	spec_entry *entries = NULL;
	layout_binding bindings[FVK_MAX_BINDINGS];
	memset(out, 0, sizeof *out);
	for (uint32_t i = 0; i < info->num_bindings; i++) bindings[i] = (layout_binding){i, STORAGE_BUFFER, 1, COMPUTE_STAGE, NULL};

	const set_layout_info set_layout = {{32, NULL}, 0, info->num_bindings, bindings};
	*call = "vkCreateDescriptorSetLayout";
	if ((r = a->CreateDescriptorSetLayout(a->device, &set_layout, NULL, &out->set_layout)) < 0) goto fail;

	const push_range range = {COMPUTE_STAGE, 0, info->push_bytes};
	const layout_info layout = {{30, NULL}, 0, 1, &out->set_layout, info->push_bytes > 0, &range};
	*call = "vkCreatePipelineLayout";
	if ((r = a->CreatePipelineLayout(a->device, &layout, NULL, &out->layout)) < 0) goto fail;

	const module_info module_create = {{16, NULL}, 0, code_bytes, code};
	*call = "vkCreateShaderModule";
	if ((r = a->CreateShaderModule(a->device, &module_create, NULL, &module)) < 0) goto fail;

	*call = "calloc";
	if (!(entries = calloc(info->num_spec + 1, sizeof *entries))) { r = -1; goto fail; }
	for (uint32_t i = 0; i < info->num_spec; i++) entries[i] = (spec_entry){i, 4 * i, 4};
	const spec_info specialization = {info->num_spec, entries, 4 * info->num_spec, spec};
	const required_subgroup_size required = {{1000225001, NULL}, info->subgroup_size};
	const stage_info stage = {
		{18, info->subgroup_size ? &required : NULL},
		info->full_subgroups ? 0x2 : 0, // VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
		COMPUTE_STAGE, module, entry, &specialization,
	};
	const uint32_t flags = info->capture_statistics ? 0x40 : 0; // VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
	const pipeline_info pipeline = {{29, NULL}, flags, stage, out->layout, 0, -1};
	*call = "vkCreateComputePipelines";
	r = a->CreateComputePipelines(a->device, info->cache, 1, &pipeline, NULL, &out->pipeline);
fail:
	free(entries);
	if (module) a->DestroyShaderModule(a->device, module, NULL);
	if (r < 0) {
		fvk_destroy_kernel(a, out);
		memset(out, 0, sizeof *out);
	}
	return r;
}

void fvk_destroy_kernel(const fvk_api *a, const fvk_kernel *k) {
	// Every destroy function takes a null handle.
	a->DestroyPipeline(a->device, k->pipeline, NULL);
	a->DestroyPipelineLayout(a->device, k->layout, NULL);
	a->DestroyDescriptorSetLayout(a->device, k->set_layout, NULL);
}

int32_t fvk_statistics(const fvk_api *a, uint64_t pipeline, uint32_t *subgroup_size, uint32_t *count, fvk_statistic *out) {
	if (!a->GetPipelineExecutablePropertiesKHR || !a->GetPipelineExecutableStatisticsKHR) return -7;
	const executable_pipeline which = {{1000269001, NULL}, pipeline};
	executable first = {.b = {1000269002, NULL}};
	uint32_t one = 1;
	int32_t r = a->GetPipelineExecutablePropertiesKHR(a->device, &which, &one, &first);
	if (r < 0) return r;
	if (one == 0) {
		*count = 0;
		return 0;
	}
	*subgroup_size = first.subgroup_size;

	executable_statistic *list = calloc(*count, sizeof *list);
	if (!list) return -1;
	for (uint32_t i = 0; i < *count; i++) list[i].b.s_type = 1000269004;
	const executable_info info = {{1000269003, NULL}, pipeline, 0};
	r = a->GetPipelineExecutableStatisticsKHR(a->device, &info, count, list);
	for (uint32_t i = 0; r >= 0 && i < *count; i++) {
		memcpy(out[i].name, list[i].name, sizeof out[i].name);
		out[i].format = list[i].format;
		out[i].bits = list[i].value;
	}
	free(list);
	return r;
}

// Commands -------------------------------------------------------------------

int32_t fvk_create_pool(const fvk_api *a, uint32_t sets, uint32_t buffers, uint64_t *pool) {
	const pool_size size = {STORAGE_BUFFER, buffers};
	const pool_info info = {{33, NULL}, 0, sets, 1, &size};
	return a->CreateDescriptorPool(a->device, &info, NULL, pool);
}

int32_t fvk_record_dispatch(const fvk_api *a, void *cmd, uint64_t pool, const fvk_dispatch *d) {
	if (d->num_buffers > 0) {
		uint64_t set = 0;
		const set_info info = {{34, NULL}, pool, 1, &d->set_layout};
		int32_t r = a->AllocateDescriptorSets(a->device, &info, &set);
		if (r < 0) return r;
		// Bindings 0..n-1 of one descriptor each are written by one update
		// that starts at binding 0 and overflows into the next ones.
		const set_write write = {{35, NULL}, set, 0, 0, d->num_buffers, STORAGE_BUFFER, NULL, d->buffers, NULL};
		a->UpdateDescriptorSets(a->device, 1, &write, 0, NULL);
		a->CmdBindDescriptorSets(cmd, COMPUTE_BIND_POINT, d->layout, 0, 1, &set, 0, NULL);
	}
	a->CmdBindPipeline(cmd, COMPUTE_BIND_POINT, d->pipeline);
	if (d->push_bytes > 0) a->CmdPushConstants(cmd, d->layout, COMPUTE_STAGE, 0, d->push_bytes, d->push);
	a->CmdDispatch(cmd, d->groups[0], d->groups[1], d->groups[2]);
	return 0;
}

void fvk_barrier(const fvk_api *a, void *cmd, uint32_t src_stages, uint32_t src_access, uint32_t dst_stages, uint32_t dst_access) {
	const memory_barrier barrier = {{46, NULL}, src_access, dst_access};
	a->CmdPipelineBarrier(cmd, src_stages, dst_stages, 0, 1, &barrier, 0, NULL, 0, NULL);
}

void fvk_copy(const fvk_api *a, void *cmd, uint64_t dst, uint64_t src, uint32_t n, const fvk_region *regions) {
	a->CmdCopyBuffer(cmd, src, dst, n, regions);
}

void fvk_fill(const fvk_api *a, void *cmd, uint64_t buffer, uint64_t offset, uint64_t bytes, uint32_t word) {
	a->CmdFillBuffer(cmd, buffer, offset, bytes, word);
}

void fvk_update(const fvk_api *a, void *cmd, uint64_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
	a->CmdUpdateBuffer(cmd, buffer, offset, bytes, data);
}

void fvk_reset_queries(const fvk_api *a, void *cmd, uint64_t pool, uint32_t count) {
	a->CmdResetQueryPool(cmd, pool, 0, count);
}

void fvk_timestamp(const fvk_api *a, void *cmd, uint64_t pool, uint32_t index) {
	// 0x2000 bottom of pipe: when everything recorded before is done.
	a->CmdWriteTimestamp(cmd, 0x2000, pool, index);
}

int32_t fvk_submit(const fvk_api *a, void *queue, void *cmd, uint64_t timeline, uint64_t value) {
	const timeline_submit_info signal = {{1000207003, NULL}, 0, NULL, 1, &value};
	const submit_info info = {{4, &signal}, 0, NULL, NULL, 1, &cmd, 1, &timeline};
	return a->QueueSubmit(queue, 1, &info, 0);
}

int32_t fvk_create_timeline(const fvk_api *a, uint64_t *timeline) {
	const semaphore_type_info type = {{1000207002, NULL}, 1, 0}; // 1 timeline
	const semaphore_info info = {{9, &type}, 0};
	return a->CreateSemaphore(a->device, &info, NULL, timeline);
}

int32_t fvk_timeline_value(const fvk_api *a, uint64_t timeline, uint64_t *value) {
	return a->GetSemaphoreCounterValue(a->device, timeline, value);
}

int32_t fvk_timeline_wait(const fvk_api *a, uint64_t timeline, uint64_t value, uint64_t timeout_ns) {
	const wait_info info = {{1000207004, NULL}, 0, 1, &timeline, &value};
	return a->WaitSemaphores(a->device, &info, timeout_ns);
}

int32_t fvk_invalidate(const fvk_api *a, uint64_t memory) {
	const mapped_range range = {{6, NULL}, memory, 0, ~(uint64_t)0};
	return a->InvalidateMappedMemoryRanges(a->device, 1, &range);
}

void fvk_set_name(const fvk_api *a, uint32_t object_type, uint64_t handle, const char *name) {
	if (!a->SetDebugUtilsObjectNameEXT) return;
	const name_info info = {{1000128000, NULL}, (int32_t)object_type, handle, name};
	a->SetDebugUtilsObjectNameEXT(a->device, &info);
}
