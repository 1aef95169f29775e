// A device that is only addresses: enough of the CUDA runtime and driver for PyTorch's caching allocator (libc10_cuda)
// to run on a machine without a GPU. Memory is counted, never touched; an address is never given out twice; an event
// has completed when its stream has been told so. Built by ../record_allocator.py as a library named libcudart.so.13,
// which the dynamic loader then takes for the real one.
#include "fake_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kBase = size_t{1} << 44;

struct Device {
  size_t total = size_t{64} << 30, used = 0, next = kBase;
  std::map<size_t, size_t> segments;                     // cudaMalloc: address -> bytes
  std::map<CUmemGenericAllocationHandle, size_t> pages;  // cuMemCreate: handle -> bytes
  CUmemGenericAllocationHandle next_page = 1;
  std::map<size_t, size_t> recorded, done;  // per stream: events recorded, events completed
  int device = 0;
};
Device& device() {
  static Device d;
  return d;
}
struct Event {
  size_t stream = 0, number = 0;
};
size_t round_up(size_t n) { return (n + kPage - 1) / kPage * kPage; }

CUresult address_reserve(CUdeviceptr* p, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *p = device().next;
  device().next += round_up(bytes);
  return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult create(CUmemGenericAllocationHandle* h, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  if (device().used + bytes > device().total) return CUDA_ERROR_OUT_OF_MEMORY;
  device().used += bytes;
  *h = device().next_page++;
  device().pages[*h] = bytes;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle h) {
  device().used -= device().pages.at(h);
  device().pages.erase(h);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
CUresult unmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult device_get(CUdevice* d, int ordinal) { return *d = ordinal, CUDA_SUCCESS; }
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  return *value = 0, CUDA_SUCCESS;
}  // no fabric handles, no RDMA
CUresult error_string(CUresult, const char** text) { return *text = "fake driver", CUDA_SUCCESS; }
CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

void fake_device(size_t bytes) { device().total = bytes; }
void fake_stream_done(size_t stream) { device().done[stream] = device().recorded[stream]; }
size_t fake_base() { return kBase; }

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (device().used + round_up(bytes) > device().total) return cudaErrorMemoryAllocation;
  device().used += round_up(bytes);
  *p = reinterpret_cast<void*>(device().next);
  device().segments[device().next] = bytes;
  device().next += round_up(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (p == nullptr) return cudaSuccess;
  const auto it = device().segments.find(reinterpret_cast<size_t>(p));
  if (it == device().segments.end()) return cudaErrorInvalidValue;
  device().used -= round_up(it->second);
  device().segments.erase(it);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = device().total - device().used;
  *total = device().total;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = cudaDeviceProp{};
  p->totalGlobalMem = device().total;
  p->major = 9;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete reinterpret_cast<Event*>(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  const auto stream = reinterpret_cast<size_t>(s);
  *reinterpret_cast<Event*>(e) = {stream, ++device().recorded[stream]};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  const Event& event = *reinterpret_cast<Event*>(e);
  return event.number <= device().done[event.stream] ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  const Event& event = *reinterpret_cast<Event*>(e);
  size_t& done = device().done[event.stream];
  done = std::max(done, event.number);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { return *d = device().device, cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return device().device = d, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = 13020, cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  return *s = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = 0, cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "fake"; }
const char* cudaGetErrorString(cudaError_t) { return "fake runtime"; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** fn, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static const std::map<std::string, void*> kFunctions = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(attribute)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)}};
  const auto it = kFunctions.find(symbol);
  *fn = it == kFunctions.end() ? reinterpret_cast<void*>(unsupported) : it->second;
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// Named by libc10_cuda, not reached from the allocator's own paths.
#define FAKE_UNSUPPORTED(name)              \
  cudaError_t name##_fake() __asm__(#name); \
  cudaError_t name##_fake() { return cudaErrorNotSupported; }
FAKE_UNSUPPORTED(cudaDeviceCanAccessPeer)
FAKE_UNSUPPORTED(cudaDeviceEnablePeerAccess)
FAKE_UNSUPPORTED(cudaDeviceGetDefaultMemPool)
FAKE_UNSUPPORTED(cudaDeviceGetGraphMemAttribute)
FAKE_UNSUPPORTED(cudaDeviceSetGraphMemAttribute)
FAKE_UNSUPPORTED(cudaEventElapsedTime)
FAKE_UNSUPPORTED(cudaFreeAsync)
FAKE_UNSUPPORTED(cudaGraphNodeGetDependencies)
FAKE_UNSUPPORTED(cudaIpcCloseMemHandle)
FAKE_UNSUPPORTED(cudaIpcGetMemHandle)
FAKE_UNSUPPORTED(cudaIpcOpenMemHandle)
FAKE_UNSUPPORTED(cudaMallocAsync)
FAKE_UNSUPPORTED(cudaMemPoolGetAttribute)
FAKE_UNSUPPORTED(cudaMemPoolSetAccess)
FAKE_UNSUPPORTED(cudaMemPoolSetAttribute)
FAKE_UNSUPPORTED(cudaMemPoolTrimTo)
FAKE_UNSUPPORTED(cudaMemcpy)
FAKE_UNSUPPORTED(cudaMemcpyAsync)
FAKE_UNSUPPORTED(cudaMemcpyPeerAsync)
FAKE_UNSUPPORTED(cudaStreamCreateWithPriority)
FAKE_UNSUPPORTED(cudaStreamGetCaptureInfo)
FAKE_UNSUPPORTED(cudaStreamQuery)
FAKE_UNSUPPORTED(cudaStreamWaitEvent)
FAKE_UNSUPPORTED(cudaThreadExchangeStreamCaptureMode)

}  // extern "C"
