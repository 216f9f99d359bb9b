// What systems have in different words: the Vulkan loader and locks.

#include <stddef.h>
#include <stdio.h>

#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

typedef SRWLOCK os_lock;
#define os_lock_init InitializeSRWLock
#define os_lock_take AcquireSRWLockExclusive
#define os_lock_give ReleaseSRWLockExclusive

static inline void os_lock_free(os_lock *l) { (void)l; }

// os_loader returns vkGetInstanceProcAddr, or NULL and why not.
static inline void *os_loader(char *err, size_t err_bytes) {
	HMODULE lib = LoadLibraryA("vulkan-1.dll");
	if (!lib) {
		snprintf(err, err_bytes, "vulkan-1.dll: LoadLibrary: error %lu", GetLastError());
		return NULL;
	}
	void *gipa = (void *)GetProcAddress(lib, "vkGetInstanceProcAddr");
	if (!gipa) snprintf(err, err_bytes, "vulkan-1.dll has no vkGetInstanceProcAddr");
	return gipa;
}

#else

#include <dlfcn.h>
#include <pthread.h>

typedef pthread_mutex_t os_lock;
#define os_lock_take pthread_mutex_lock
#define os_lock_give pthread_mutex_unlock
#define os_lock_free pthread_mutex_destroy

static inline void os_lock_init(os_lock *l) { pthread_mutex_init(l, NULL); }

static inline void *os_loader(char *err, size_t err_bytes) {
	void *lib = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(err, err_bytes, "%s", dlerror());
		return NULL;
	}
	void *gipa = dlsym(lib, "vkGetInstanceProcAddr");
	if (!gipa) snprintf(err, err_bytes, "libvulkan.so.1 has no vkGetInstanceProcAddr");
	return gipa;
}

#endif
