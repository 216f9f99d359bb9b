#include "ext.h"
#include "ext_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The structures below repeat vulkan_core.h for the members in use. A comment
// gives the sType of each.

typedef struct { int32_t s_type; const void *next; } base; // head of every pNext structure
typedef void (*pfn)(void);
typedef pfn (*pfn_proc)(void *, const char *);

// Loader -----------------------------------------------------------------

void *fvk_load(char *err, size_t err_bytes) { return os_loader(err, err_bytes); }

void *fvk_proc(void *gipa, void *instance, const char *name) {
	return (void *)((pfn_proc)gipa)(instance, name);
}

uint32_t fvk_loader_version(void *gipa) {
	uint32_t version = 1u << 22; // a loader without the function is version 1.0
	int32_t (*f)(uint32_t *) = fvk_proc(gipa, NULL, "vkEnumerateInstanceVersion");
	if (f) f(&version);
	return version;
}

// Messages of the validation layer ----------------------------------------

enum { MAX_MESSAGES = 64 }; // later ones are dropped; the first tell the cause

struct fvk_messages {
	os_lock lock;
	uint32_t first, count;
	char *text[MAX_MESSAGES];
};

fvk_messages *fvk_messages_new(void) {
	fvk_messages *m = calloc(1, sizeof *m);
	if (m) os_lock_init(&m->lock);
	return m;
}

char *fvk_messages_take(fvk_messages *m) {
	char *text = NULL;
	os_lock_take(&m->lock);
	if (m->count > 0) {
		text = m->text[m->first];
		m->first = (m->first + 1) % MAX_MESSAGES;
		m->count--;
	}
	os_lock_give(&m->lock);
	return text;
}

void fvk_messages_free(fvk_messages *m) {
	if (!m) return;
	for (char *text; (text = fvk_messages_take(m));) free(text);
	os_lock_free(&m->lock);
	free(m);
}

// The leading members of VkDebugUtilsMessengerCallbackDataEXT (1000128003).
typedef struct {
	base b;
	uint32_t flags;
	const char *id_name;
	int32_t id_number;
	const char *message;
} callback_data;

// on_message may run on any thread inside any Vulkan call, so it only stores.
static uint32_t on_message(uint32_t severity, uint32_t types, const callback_data *data, void *user) {
	(void)severity, (void)types;
	fvk_messages *m = user;
	const char *id = data->id_name ? data->id_name : "", *message = data->message ? data->message : "";
	const size_t bytes = strlen(id) + strlen(message) + 3;
	char *text = malloc(bytes);
	if (text) snprintf(text, bytes, "%s: %s", id, message);
	os_lock_take(&m->lock);
	if (text && m->count < MAX_MESSAGES) {
		m->text[(m->first + m->count) % MAX_MESSAGES] = text;
		m->count++;
		text = NULL;
	}
	os_lock_give(&m->lock);
	free(text);
	return 0; // VK_FALSE: the call goes on
}

// Instance -----------------------------------------------------------------

typedef struct { base b; uint32_t flags, severity, types; void *callback, *user; } messenger_info; // 1000128004
typedef struct { base b; const char *app; uint32_t app_version; const char *engine; uint32_t engine_version, api; } application_info; // 0
typedef struct { base b; uint32_t flags; const application_info *app; uint32_t num_layers; const char *const *layers; uint32_t num_extensions; const char *const *extensions; } instance_info; // 1
typedef struct { const char *layer, *name; int32_t type; uint32_t count; const void *values; } layer_setting;
typedef struct { base b; uint32_t count; const layer_setting *settings; } layer_settings; // 1000496000
typedef struct { base b; uint32_t num_enabled; const int32_t *enabled; uint32_t num_disabled; const int32_t *disabled; } validation_features; // 1000247000

static const char *const validation_layer = "VK_LAYER_KHRONOS_validation";

int32_t fvk_create_instance(void *gipa, const fvk_instance_info *info, fvk_messages *messages, void **instance, uint64_t *messenger) {
	int32_t (*create)(const instance_info *, const void *, void **) = fvk_proc(gipa, NULL, "vkCreateInstance");
	if (!create) return -3; // VK_ERROR_INITIALIZATION_FAILED
	const application_info app = {{0, NULL}, "flashvk", 0, "flashvk", 0, info->api_version};
	instance_info create_info = {{1, NULL}, 0, &app, 0, NULL, 0, NULL};

	// 0x1000 error severity; 0x2 validation messages (not the loader's own).
	messenger_info messenger_create = {{1000128004, NULL}, 0, 0x1000, 0x2, (void *)on_message, messages};
	// The heuristic makes it look at what shaders access, without which it
	// misses hazards between dispatches.
	const uint32_t yes = 1;
	const layer_setting setting[] = {
		{validation_layer, "validate_sync", 0 /* bool32 */, 1, &yes},
		{validation_layer, "syncval_shader_accesses_heuristic", 0, 1, &yes},
	};
	const layer_settings settings = {{1000496000, &messenger_create}, 2, setting};
	const int32_t sync = 4; // VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
	const validation_features features = {{1000247000, &messenger_create}, 1, &sync, 0, NULL};
	const char *extensions[] = {"VK_EXT_debug_utils", info->layer_settings ? "VK_EXT_layer_settings" : "VK_EXT_validation_features"};
	if (info->validate) {
		create_info.num_layers = 1;
		create_info.layers = &validation_layer;
		create_info.num_extensions = 2;
		create_info.extensions = extensions;
		create_info.b.next = info->layer_settings ? (const void *)&settings : (const void *)&features;
	}
	int32_t r = create(&create_info, NULL, instance);
	if (r < 0 || !info->validate) return r;

	int32_t (*create_messenger)(void *, const messenger_info *, const void *, uint64_t *) = fvk_proc(gipa, *instance, "vkCreateDebugUtilsMessengerEXT");
	r = create_messenger ? create_messenger(*instance, &messenger_create, NULL, messenger) : -7;
	if (r < 0) {
		void (*destroy)(void *, const void *) = fvk_proc(gipa, *instance, "vkDestroyInstance");
		if (destroy) destroy(*instance, NULL);
		*instance = NULL;
	}
	return r;
}

void fvk_destroy_messenger(void *gipa, void *instance, uint64_t messenger) {
	void (*f)(void *, uint64_t, const void *) = fvk_proc(gipa, instance, "vkDestroyDebugUtilsMessengerEXT");
	if (f && messenger) f(instance, messenger, NULL);
}

typedef struct { char name[FVK_NAME_BYTES]; uint32_t version; } extension_properties;

int32_t fvk_extensions(void *gipa, void *instance, void *device, const char *layer, uint32_t *count, char *names) {
	int32_t (*of_device)(void *, const char *, uint32_t *, extension_properties *) = fvk_proc(gipa, instance, "vkEnumerateDeviceExtensionProperties");
	int32_t (*of_layer)(const char *, uint32_t *, extension_properties *) = fvk_proc(gipa, NULL, "vkEnumerateInstanceExtensionProperties");
	if (device ? !of_device : !of_layer) return -3;
	extension_properties *list = NULL;
	if (names && !(list = calloc(*count + 1, sizeof *list))) return -1;
	int32_t r = device ? of_device(device, layer, count, list) : of_layer(layer, count, list);
	for (uint32_t i = 0; list && i < *count; i++) memcpy(names + i * FVK_NAME_BYTES, list[i].name, FVK_NAME_BYTES);
	free(list);
	return r;
}

// Physical device and device -----------------------------------------------

typedef struct { uint32_t flags, count, timestamp_bits, granularity[3]; } queue_family_properties;

void fvk_queue_families(void *gipa, void *instance, void *physical, uint32_t *count, fvk_queue_family *out) {
	void (*f)(void *, uint32_t *, queue_family_properties *) = fvk_proc(gipa, instance, "vkGetPhysicalDeviceQueueFamilyProperties");
	queue_family_properties list[32];
	if (*count > 32) *count = 32;
	f(physical, count, list);
	for (uint32_t i = 0; i < *count; i++) out[i] = (fvk_queue_family){list[i].flags, list[i].count, list[i].timestamp_bits};
}

int32_t fvk_get2(void *gipa, void *instance, void *physical, const char *name, void *chain) {
	void (*f)(void *, void *) = fvk_proc(gipa, instance, name);
	if (!f) return -7; // VK_ERROR_EXTENSION_NOT_PRESENT
	f(physical, chain);
	return 0;
}

int32_t fvk_enumerate(void *gipa, void *instance, void *physical, const char *name, uint32_t *count, void *out) {
	int32_t (*f)(void *, uint32_t *, void *) = fvk_proc(gipa, instance, name);
	return f ? f(physical, count, out) : -7;
}

typedef struct { base b; uint32_t flags, family, count; const float *priorities; } queue_info; // 2
typedef struct { base b; uint32_t flags, num_queues; const queue_info *queues; uint32_t num_layers; const void *layers; uint32_t num_extensions; const char *const *extensions; const void *features; } device_info; // 3

int32_t fvk_create_device(void *gipa, void *instance, void *physical, uint32_t family, const char *names, uint32_t num_names, void *features, void **device) {
	int32_t (*f)(void *, const device_info *, const void *, void **) = fvk_proc(gipa, instance, "vkCreateDevice");
	const char *extensions[64];
	if (!f || num_names > 64) return -3;
	for (uint32_t i = 0; i < num_names; i++, names += strlen(names) + 1) extensions[i] = names;
	const float priority = 1;
	const queue_info queue = {{2, NULL}, 0, family, 1, &priority};
	const device_info info = {{3, features}, 0, 1, &queue, 0, NULL, num_names, extensions, NULL};
	return f(physical, &info, NULL, device);
}
