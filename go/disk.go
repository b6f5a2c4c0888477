package fipsee

// #cgo pkg-config: fipsee
// #include "wrap.h"
import "C"

import (
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// A WaitMode is how calls wait for the daemon.
type WaitMode uint32

const (
	WaitAdaptive WaitMode = C.FIPSEE_WAIT_ADAPTIVE // poll for a while, then sleep
	WaitPause    WaitMode = C.FIPSEE_WAIT_PAUSE    // never sleep: the shortest latency; occupies a CPU
	WaitSleep    WaitMode = C.FIPSEE_WAIT_SLEEP    // sleep at once: the least CPU
	WaitSpin     WaitMode = C.FIPSEE_WAIT_SPIN     // as WaitPause, without the PAUSE between two looks
	WaitYield    WaitMode = C.FIPSEE_WAIT_YIELD    // as WaitPause, and give the CPU to other threads
	WaitUmwait   WaitMode = C.FIPSEE_WAIT_UMWAIT   // as WaitPause, with instructions that not every CPU has
	WaitTpause   WaitMode = C.FIPSEE_WAIT_TPAUSE
	WaitMonitorx WaitMode = C.FIPSEE_WAIT_MONITORX
)

// A Claim is what an opened disk means to other writers.
type Claim uint32

const (
	NoClaim     Claim = 0                          // write unless another client claims the disk
	SoleWriter  Claim = C.FIPSEE_OPEN_SOLE_WRITER  // be the only client that may write, or fail with EBUSY
	IgnoreClaim Claim = C.FIPSEE_OPEN_IGNORE_CLAIM // write beside a claim; nothing protects the data then
)

// Options say what to open, and how. 0 in a field means its default.
type Options struct {
	Disk      string        // name of the disk; must be given
	Socket    string        // the daemon's socket; default: $FIPSEE_SOCKET, else the user's, else the system's
	Queues    int           // queues wanted, default 1: as many calls run at a time. The daemon may grant fewer
	Depth     int           // requests outstanding per queue, default 64; the daemon may grant fewer
	PoolBytes int64         // memory for the library's own copies and tables, default 2.25 MiB per queue
	Wait      WaitMode      // default WaitAdaptive
	Look      time.Duration // adaptive waiting: how long to poll before sleeping, default 200 us
	ReadOnly  bool          // the daemon refuses writes of this client
	Exclusive bool          // be the only client of the disk, or fail with EBUSY
	Claim     Claim         // default NoClaim

	// Not 0: when the daemon is gone, Queue.Wait and the blocking calls reconnect, for at most this long (negative: for
	// ever), and submit again what has no answer. 0: they fail at once. Only with one queue; with more, call
	// Disk.Reconnect.
	Reconnect time.Duration
}

// A Capability is something that a disk can do.
type Capability uint32

const (
	CanWrite       Capability = C.FIPSEE_CAPABILITY_WRITE
	CanFlush       Capability = C.FIPSEE_CAPABILITY_FLUSH
	CanFUA         Capability = C.FIPSEE_CAPABILITY_FUA // takes Durable
	CanDiscard     Capability = C.FIPSEE_CAPABILITY_DISCARD
	CanWriteZeroes Capability = C.FIPSEE_CAPABILITY_WRITE_ZEROES
)

// Info describes a disk.
type Info struct {
	Size             int64  // in bytes, the newest known
	BlockBytes       int    // logical block size: the unit of offsets and lengths; 512 to 4096
	OptimalBytes     int    // preferred size and alignment of a transfer
	MaxTransferBytes int    // most data of one staged read or write; blocking calls split
	MaxSegments      int    // most pieces of one staged StageReadv or StageWritev
	MaxRangeBytes    uint64 // longest staged discard or write of zeroes; blocking calls split
	Capabilities     Capability
	Queues           int      // granted
	Identity         [16]byte // identifies the disk and its content; the same after a restart of the daemon
}

// Flags of writes.
type Flags uint32

const (
	Durable Flags = C.FIPSEE_DURABLE // durable on completion; needs CanFUA
	Unmap   Flags = C.FIPSEE_UNMAP   // writes of zeroes only: the blocks may be deallocated
)

// A Disk is an opened disk. Its methods may be called by any number of goroutines at the same time; as many calls run at
// once as there are queues, and the others wait.
type Disk struct {
	// Held for reading during each call, and for writing while no other call may run.
	mutex  sync.RWMutex
	c      *C.struct_fipsee_disk // nil once closed
	queues []*Queue

	// Of what follows.
	pool    sync.Mutex
	changed sync.Cond
	idle    []*Queue
	shared  int // queues that the disk's own calls use
}

// Open opens a disk, to be given to Close. Its errors are those of fipsee_open, among them ENOENT (no such socket, or no
// such disk that this user may use), ECONNREFUSED (no daemon listens), EACCES and EBUSY.
func Open(options Options) (*Disk, error) {
	const op = "open"
	for _, text := range []string{options.Disk, options.Socket} {
		if strings.IndexByte(text, 0) >= 0 {
			return nil, invalid(op, "a name has a zero byte in it")
		}
	}
	for _, number := range []int{options.Queues, options.Depth} {
		if number < 0 || number > math.MaxInt32 {
			return nil, invalid(op, "the number of queues or their depth is out of range")
		}
	}
	if options.PoolBytes < 0 || options.Look < 0 {
		return nil, invalid(op, "the size of the pool or the time to look is negative")
	}
	var c C.struct_fipsee_options
	C.fipsee_options_init(&c)
	c.disk = C.CString(options.Disk)
	defer C.free(unsafe.Pointer(c.disk))
	if options.Socket != "" {
		c.socket_path = C.CString(options.Socket)
		defer C.free(unsafe.Pointer(c.socket_path))
	}
	c.queue_count = C.uint32_t(options.Queues)
	c.depth = C.uint32_t(options.Depth)
	c.pool_bytes = C.uint64_t(options.PoolBytes)
	c.wait = C.uint32_t(options.Wait)
	c.look_ns = C.uint64_t(options.Look.Nanoseconds())
	c.reconnect_ns = nanoseconds(options.Reconnect)
	c.flags = C.uint32_t(options.Claim)
	if options.ReadOnly {
		c.flags |= C.FIPSEE_OPEN_READ_ONLY
	}
	if options.Exclusive {
		c.flags |= C.FIPSEE_OPEN_EXCLUSIVE
	}
	disk := &Disk{}
	if _, err := get(op, C.wrap_open(&c, &disk.c)); err != nil {
		return nil, err
	}
	disk.changed.L = &disk.pool
	for index := 0; ; index++ {
		queue := C.fipsee_get_queue(disk.c, C.uint32_t(index))
		if queue == nil {
			break
		}
		disk.queues = append(disk.queues, &Queue{disk: disk, c: queue})
	}
	disk.idle = append(disk.idle, disk.queues...)
	disk.shared = len(disk.queues)
	return disk, nil
}

// Negative: for ever.
func nanoseconds(duration time.Duration) C.uint64_t {
	if duration < 0 {
		return math.MaxUint64
	}
	return C.uint64_t(duration.Nanoseconds())
}

// Version returns the version of libfipsee.
func Version() string {
	return C.GoString(C.fipsee_version())
}

// Begin a call that others may run beside: nil, or the reason why not. Then d.mutex.RUnlock ends it.
func (d *Disk) begin(op string) error {
	d.mutex.RLock()
	if d.c == nil {
		d.mutex.RUnlock()
		return &closedError{op}
	}
	return nil
}

// Close waits for the calls that run, has the daemon finish what was submitted, and frees everything, memory included, in
// case of an error, too: slices of Memory must not be used afterwards.
func (d *Disk) Close() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.c == nil {
		return &closedError{"close"}
	}
	c := d.c
	d.c = nil
	_, err := get("close", C.wrap_close(c))
	return err
}

// Reconnect connects again to the same disk after ENOTCONN, or at any time, registers its memory, and submits every staged
// request without a result again, on all queues. It waits for the calls that run, then tries until giveUpAfter has
// passed (negative: for ever), at least once. On failure nothing changes. A blocking call that failed is not repeated.
// ESTALE: there is another disk in its place.
func (d *Disk) Reconnect(giveUpAfter time.Duration) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.c == nil {
		return &closedError{"reconnect"}
	}
	_, err := get("reconnect", C.wrap_reconnect(d.c, nanoseconds(giveUpAfter)))
	return err
}

// Info describes the disk. It does not ask the daemon.
func (d *Disk) Info() (Info, error) {
	if err := d.begin("info"); err != nil {
		return Info{}, err
	}
	defer d.mutex.RUnlock()
	return d.describe()
}

func (d *Disk) describe() (Info, error) {
	var c C.struct_fipsee_info
	c.size_bytes = C.sizeof_struct_fipsee_info
	if _, err := get("info", C.wrap_get_info(d.c, &c)); err != nil {
		return Info{}, err
	}
	info := Info{
		Size:             int64(c.capacity_bytes),
		BlockBytes:       int(c.block_bytes),
		OptimalBytes:     int(c.optimal_bytes),
		MaxTransferBytes: int(c.max_transfer_bytes),
		MaxSegments:      int(c.max_segments),
		MaxRangeBytes:    uint64(c.max_range_bytes),
		Capabilities:     Capability(c.capabilities),
		Queues:           int(c.queue_count),
	}
	for index, part := range c.identity {
		info.Identity[index] = byte(part)
	}
	return info, nil
}

// Queue returns queue number index, from 0, to be used by the caller. The disk's own calls use the queues that were never
// returned, and fail with EBUSY when there are none.
func (d *Disk) Queue(index int) (*Queue, error) {
	if index < 0 || index >= len(d.queues) {
		return nil, invalid("queue", "the disk has no queue of this number; Options.Queues asks for more")
	}
	d.pool.Lock()
	defer d.pool.Unlock()
	queue := d.queues[index]
	if !queue.isTaken {
		queue.isTaken = true
		d.shared--
		for position, idle := range d.idle {
			if idle == queue {
				d.idle = append(d.idle[:position], d.idle[position+1:]...)
				break
			}
		}
		// Those that wait for a queue may wait in vain now.
		d.changed.Broadcast()
	}
	return queue, nil
}

// A queue for one call; to be given back.
func (d *Disk) lend(op string) (*Queue, error) {
	d.pool.Lock()
	defer d.pool.Unlock()
	for len(d.idle) == 0 {
		if d.shared == 0 {
			const message = "all queues were taken by Disk.Queue; ask for more by Options.Queues, or use theirs"
			return nil, &Error{Op: op, Errno: syscall.EBUSY, Message: message}
		}
		d.changed.Wait()
	}
	last := len(d.idle) - 1
	queue := d.idle[last]
	d.idle = d.idle[:last]
	return queue, nil
}

func (d *Disk) giveBack(queue *Queue) {
	d.pool.Lock()
	defer d.pool.Unlock()
	if !queue.isTaken {
		d.idle = append(d.idle, queue)
		d.changed.Signal()
	}
}

// ReadAt reads len(p) bytes from offset on, both multiples of the logical block size. As io.ReaderAt says, it returns fewer
// only with an error, which is io.EOF at the end of the disk. It copies through the library's pool unless p is in Memory
// of the disk and starts at a multiple of 512 bytes there.
func (d *Disk) ReadAt(p []byte, offset int64) (int, error) {
	queue, err := d.lend("read")
	if err != nil {
		return 0, err
	}
	defer d.giveBack(queue)
	return queue.ReadAt(p, offset)
}

// WriteAt writes len(p) bytes from offset on, both multiples of the logical block size. When it fails, some of the data may
// have been written. A disk does not grow: ENXIO beyond its end. It is durable after Flush.
func (d *Disk) WriteAt(p []byte, offset int64) (int, error) {
	return d.WriteFlagsAt(p, offset, 0)
}

// WriteFlagsAt is WriteAt with Durable or 0.
func (d *Disk) WriteFlagsAt(p []byte, offset int64, flags Flags) (int, error) {
	queue, err := d.lend("write")
	if err != nil {
		return 0, err
	}
	defer d.giveBack(queue)
	return queue.WriteFlagsAt(p, offset, flags)
}

// Flush makes everything durable that was completed before, on any queue.
func (d *Disk) Flush() error {
	queue, err := d.lend("flush")
	if err != nil {
		return err
	}
	defer d.giveBack(queue)
	return queue.Flush()
}

// Discard says that the content of a range is no longer needed: it reads as zeroes or as before.
func (d *Disk) Discard(offset, length int64) error {
	queue, err := d.lend("discard")
	if err != nil {
		return err
	}
	defer d.giveBack(queue)
	return queue.Discard(offset, length)
}

// WriteZeroes makes a range read as zeroes. Flags are Durable and Unmap.
func (d *Disk) WriteZeroes(offset, length int64, flags Flags) error {
	queue, err := d.lend("write zeroes")
	if err != nil {
		return err
	}
	defer d.giveBack(queue)
	return queue.WriteZeroes(offset, length, flags)
}

var (
	_ io.ReaderAt = (*Disk)(nil)
	_ io.WriterAt = (*Disk)(nil)
	_ io.Closer   = (*Disk)(nil)
)

func isBeyondTheEnd(err error) bool {
	return errors.Is(err, syscall.ENXIO)
}
