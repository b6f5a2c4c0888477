package fipsee

// #include "wrap.h"
import "C"

import (
	"sync"
	"unsafe"
)

// Memory is memory that the daemon also maps: data moves between it and the disk without being copied. Go's garbage
// collector does not manage it.
type Memory struct {
	disk  *Disk
	mutex sync.Mutex
	c     *C.struct_fipsee_memory // nil once freed
	bytes []byte
}

// NewMemory returns length bytes of new memory, all zeroes, rounded up to pages. It exists until Free or Disk.Close, also
// over Disk.Reconnect. A disk has up to 63 at a time: allocate few and slice them.
func (d *Disk) NewMemory(length int) (*Memory, error) {
	const op = "new memory"
	if length <= 0 {
		return nil, invalid(op, "the length must be positive")
	}
	if err := d.begin(op); err != nil {
		return nil, err
	}
	defer d.mutex.RUnlock()
	memory := &Memory{disk: d}
	if _, err := get(op, C.wrap_memory_create(d.c, C.uint64_t(length), &memory.c)); err != nil {
		return nil, err
	}
	start := (*byte)(C.fipsee_memory_address(memory.c))
	memory.bytes = unsafe.Slice(start, int(C.fipsee_memory_length(memory.c)))
	return memory, nil
}

// Bytes is the memory. The slice, and all slices of it, must not be used after Free or Disk.Close: there is no memory
// there then, or other memory.
func (m *Memory) Bytes() []byte {
	return m.bytes
}

// Free takes the memory back from the daemon, which finishes the requests in flight, and unmaps it. No request that uses
// it may be staged. ENOTCONN: call it again after Disk.Reconnect, or close the disk.
func (m *Memory) Free() error {
	const op = "free memory"
	if err := m.disk.begin(op); err != nil {
		return err
	}
	defer m.disk.mutex.RUnlock()
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.c == nil {
		return invalid(op, "the memory was freed before")
	}
	if _, err := get(op, C.wrap_memory_free(m.disk.c, m.c)); err != nil {
		return err
	}
	m.c, m.bytes = nil, nil
	return nil
}
