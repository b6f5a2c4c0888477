package fipsee

// #include "wrap.h"
import "C"

import (
	"io"
	"math"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// A Queue carries requests. It has the blocking calls of Disk, and batches: stage requests, publish them by Submit, and
// take results in the order of completion by Reap or Wait. Blocking calls fail with EBUSY while staged requests are not
// reaped. Calls of several goroutines wait for each other; use a queue for each goroutine.
type Queue struct {
	disk    *Disk
	c       *C.struct_fipsee_queue // until the disk is closed
	mutex   sync.Mutex
	isTaken bool // by Disk.Queue; guarded by disk.pool
}

// An Event says that something happened to the disk.
type Event int

const (
	NoEvent  Event = C.FIPSEE_EVENT_NONE
	Resized  Event = C.FIPSEE_EVENT_RESIZED  // the disk has a new size: Disk.Info
	Detached Event = C.FIPSEE_EVENT_DETACHED // the daemon removes the disk: requests fail with ENODEV; close it
)

// A Result is that of a staged request.
type Result struct {
	Token  uint64 // as staged
	result int32
	Status uint32 // finer than the errno: FIPSEE_STATUS_* in fipsee.h
}

// The library fills Go's array: both are the same structure.
var (
	_ [C.sizeof_struct_fipsee_result]byte = [unsafe.Sizeof(Result{})]byte{}
	_ [4]byte                             = [unsafe.Offsetof(Result{}.Status) - unsafe.Offsetof(Result{}.result)]byte{}
)

// Err is nil if the request was done, else an *Error.
func (r Result) Err() error {
	if r.result == 0 {
		return nil
	}
	message := C.GoString(C.fipsee_result_message((*C.struct_fipsee_result)(unsafe.Pointer(&r))))
	return &Error{Op: "request", Errno: syscall.Errno(-r.result), Message: message}
}

// Begin a call on the queue: nil, or the reason why not. Then q.end ends it.
func (q *Queue) begin(op string) error {
	if err := q.disk.begin(op); err != nil {
		return err
	}
	q.mutex.Lock()
	return nil
}

func (q *Queue) end() {
	q.mutex.Unlock()
	q.disk.mutex.RUnlock()
}

// The address of the first byte. C does not keep it.
func address(p []byte) *C.uchar {
	if len(p) == 0 {
		return nil
	}
	return (*C.uchar)(&p[0])
}

func checkOffset(op string, offset int64) error {
	if offset < 0 {
		return invalid(op, "the offset is negative")
	}
	return nil
}

func checkRange(op string, offset, length int64) error {
	if length < 0 {
		return invalid(op, "the length is negative")
	}
	return checkOffset(op, offset)
}

// ReadAt is Disk.ReadAt, on this queue.
func (q *Queue) ReadAt(p []byte, offset int64) (int, error) {
	const op = "read"
	if err := checkOffset(op, offset); err != nil {
		return 0, err
	}
	if err := q.begin(op); err != nil {
		return 0, err
	}
	defer q.end()
	err := q.read(p, offset)
	if err == nil {
		return len(p), nil
	}
	if !isBeyondTheEnd(err) {
		return 0, err
	}
	info, failure := q.disk.describe()
	switch {
	case failure != nil:
		return 0, failure
	case offset >= info.Size:
		return 0, io.EOF
	case int64(len(p)) <= info.Size-offset:
		// It was resized meanwhile.
		return 0, err
	}
	p = p[:info.Size-offset]
	if err := q.read(p, offset); err != nil {
		return 0, err
	}
	return len(p), io.EOF
}

func (q *Queue) read(p []byte, offset int64) error {
	_, err := get("read", C.wrap_read(q.c, address(p), C.size_t(len(p)), C.uint64_t(offset)))
	return err
}

// WriteAt is Disk.WriteAt, on this queue.
func (q *Queue) WriteAt(p []byte, offset int64) (int, error) {
	return q.WriteFlagsAt(p, offset, 0)
}

// WriteFlagsAt is WriteAt with Durable or 0.
func (q *Queue) WriteFlagsAt(p []byte, offset int64, flags Flags) (int, error) {
	const op = "write"
	if err := checkOffset(op, offset); err != nil {
		return 0, err
	}
	if err := q.begin(op); err != nil {
		return 0, err
	}
	defer q.end()
	outcome := C.wrap_write(q.c, address(p), C.size_t(len(p)), C.uint64_t(offset), C.uint32_t(flags))
	if _, err := get(op, outcome); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush is Disk.Flush, on this queue.
func (q *Queue) Flush() error {
	if err := q.begin("flush"); err != nil {
		return err
	}
	defer q.end()
	_, err := get("flush", C.wrap_flush(q.c))
	return err
}

// Discard is Disk.Discard, on this queue.
func (q *Queue) Discard(offset, length int64) error {
	const op = "discard"
	if err := checkRange(op, offset, length); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	_, err := get(op, C.wrap_discard(q.c, C.uint64_t(length), C.uint64_t(offset)))
	return err
}

// WriteZeroes is Disk.WriteZeroes, on this queue.
func (q *Queue) WriteZeroes(offset, length int64, flags Flags) error {
	const op = "write zeroes"
	if err := checkRange(op, offset, length); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	_, err := get(op, C.wrap_write_zeroes(q.c, C.uint64_t(length), C.uint64_t(offset), C.uint32_t(flags)))
	return err
}

// StageRead stages a read into p, which is in Memory of the disk, starts at a multiple of 512 bytes there, and must not be
// used until the result with this token is reaped. The daemon does not see the request before Submit or Wait. EAGAIN:
// Depth requests are outstanding, reap first; EFAULT: p is not in memory of this disk.
func (q *Queue) StageRead(p []byte, offset int64, token uint64) error {
	const op = "stage read"
	if err := checkOffset(op, offset); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	_, err := get(op, C.wrap_stage_read(q.c, address(p), C.size_t(len(p)), C.uint64_t(offset), C.uint64_t(token)))
	return err
}

// StageWrite stages a write of p, with Durable or 0; see StageRead.
func (q *Queue) StageWrite(p []byte, offset int64, flags Flags, token uint64) error {
	const op = "stage write"
	if err := checkOffset(op, offset); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	outcome := C.wrap_stage_write(q.c, address(p), C.size_t(len(p)), C.uint64_t(offset), C.uint32_t(flags), C.uint64_t(token))
	_, err := get(op, outcome)
	return err
}

// Addresses and lengths, as numbers; see wrap.h.
func flatten(op string, pieces [][]byte) ([]C.uintptr_t, error) {
	if len(pieces) == 0 || len(pieces) > C.WRAP_MAX_PIECES {
		return nil, invalid(op, "a request has 1 to 256 pieces")
	}
	flat := make([]C.uintptr_t, 0, 2*len(pieces))
	for _, piece := range pieces {
		flat = append(flat, C.uintptr_t(uintptr(unsafe.Pointer(address(piece)))), C.uintptr_t(len(piece)))
	}
	return flat, nil
}

// StageReadv is StageRead into 1 to 256 pieces; each starts at a multiple of 512 bytes and is a multiple of 512 bytes long,
// their sum a multiple of the logical block size.
func (q *Queue) StageReadv(pieces [][]byte, offset int64, token uint64) error {
	const op = "stage readv"
	flat, err := flatten(op, pieces)
	if err != nil {
		return err
	}
	if err := checkOffset(op, offset); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	_, err = get(op, C.wrap_stage_readv(q.c, &flat[0], C.uint32_t(len(pieces)), C.uint64_t(offset), C.uint64_t(token)))
	runtime.KeepAlive(pieces)
	return err
}

// StageWritev is StageWrite of 1 to 256 pieces; see StageReadv.
func (q *Queue) StageWritev(pieces [][]byte, offset int64, flags Flags, token uint64) error {
	const op = "stage writev"
	flat, err := flatten(op, pieces)
	if err != nil {
		return err
	}
	if err := checkOffset(op, offset); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	count := C.uint32_t(len(pieces))
	outcome := C.wrap_stage_writev(q.c, &flat[0], count, C.uint64_t(offset), C.uint32_t(flags), C.uint64_t(token))
	_, err = get(op, outcome)
	runtime.KeepAlive(pieces)
	return err
}

// StageFlush stages a flush; see StageRead.
func (q *Queue) StageFlush(token uint64) error {
	if err := q.begin("stage flush"); err != nil {
		return err
	}
	defer q.end()
	_, err := get("stage flush", C.wrap_stage_flush(q.c, C.uint64_t(token)))
	return err
}

// StageDiscard stages a discard; see StageRead.
func (q *Queue) StageDiscard(offset, length int64, token uint64) error {
	const op = "stage discard"
	if err := checkRange(op, offset, length); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	_, err := get(op, C.wrap_stage_discard(q.c, C.uint64_t(length), C.uint64_t(offset), C.uint64_t(token)))
	return err
}

// StageWriteZeroes stages a write of zeroes, with Durable and Unmap; see StageRead.
func (q *Queue) StageWriteZeroes(offset, length int64, flags Flags, token uint64) error {
	const op = "stage write zeroes"
	if err := checkRange(op, offset, length); err != nil {
		return err
	}
	if err := q.begin(op); err != nil {
		return err
	}
	defer q.end()
	outcome := C.wrap_stage_write_zeroes(q.c, C.uint64_t(length), C.uint64_t(offset), C.uint32_t(flags), C.uint64_t(token))
	_, err := get(op, outcome)
	return err
}

// Submit publishes what is staged, together. It never blocks.
func (q *Queue) Submit() error {
	if err := q.begin("submit"); err != nil {
		return err
	}
	defer q.end()
	_, err := get("submit", C.wrap_submit(q.c))
	return err
}

// Where C writes results, and how many there is room for.
func room(op string, results []Result) (*C.struct_fipsee_result, C.uint32_t, error) {
	if len(results) == 0 {
		return nil, 0, invalid(op, "there is no room for results")
	}
	count := len(results)
	if count > math.MaxInt32 {
		count = math.MaxInt32
	}
	return (*C.struct_fipsee_result)(unsafe.Pointer(&results[0])), C.uint32_t(count), nil
}

// Reap takes finished requests into results, in any order. It returns how many; 0 when none is there. It never blocks.
func (q *Queue) Reap(results []Result) (int, error) {
	const op = "reap"
	first, count, err := room(op, results)
	if err != nil {
		return 0, err
	}
	if err := q.begin(op); err != nil {
		return 0, err
	}
	defer q.end()
	return get(op, C.wrap_reap(q.c, first, count))
}

// Wait submits, waits for at least one result or event, and returns the number of results. 0 means that an event came,
// that the timeout passed (negative: wait for ever), or that nothing is outstanding. ENOTCONN: the daemon is gone and
// nothing is left to reap; see Disk.Reconnect.
func (q *Queue) Wait(results []Result, timeout time.Duration) (int, error) {
	const op = "wait"
	first, count, err := room(op, results)
	if err != nil {
		return 0, err
	}
	if err := q.begin(op); err != nil {
		return 0, err
	}
	defer q.end()
	return get(op, C.wrap_wait(q.c, first, count, C.int64_t(timeout.Nanoseconds())))
}

// Depth is the most requests that may be outstanding: staged and not reaped.
func (q *Queue) Depth() (int, error) {
	if err := q.begin("depth"); err != nil {
		return 0, err
	}
	defer q.end()
	return get("depth", C.wrap_depth(q.c))
}

// Outstanding is their number now.
func (q *Queue) Outstanding() (int, error) {
	if err := q.begin("outstanding"); err != nil {
		return 0, err
	}
	defer q.end()
	return get("outstanding", C.wrap_outstanding(q.c))
}

// NextEvent takes the oldest event, NoEvent if there is none. Call it after Reap or Wait. Each queue gets each event.
func (q *Queue) NextEvent() (Event, error) {
	if err := q.begin("event"); err != nil {
		return NoEvent, err
	}
	defer q.end()
	event, err := get("event", C.wrap_next_event(q.c))
	return Event(event), err
}

var (
	_ io.ReaderAt = (*Queue)(nil)
	_ io.WriterAt = (*Queue)(nil)
)
