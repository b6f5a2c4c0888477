package fipsee_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"fipsee"
)

const block = 4096

func noise(length int, seed int64) []byte {
	data := make([]byte, length)
	rand.New(rand.NewSource(seed)).Read(data)
	return data
}

func wants(t *testing.T, err error, want error, words string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), words) {
		t.Fatalf("got %v instead of %v with '%s'", err, want, words)
	}
}

func TestDataComesBack(t *testing.T) {
	served := serve(t, "a=memory:16M", "b=file:DIR/b.img,size=16M")
	for _, name := range []string{"a", "b"} {
		disk := served.open(fipsee.Options{Disk: name})
		written, read := noise(5<<20, 1), make([]byte, 5<<20)
		count, err := disk.WriteAt(written, 3*block)
		if must(t, err); count != len(written) {
			t.Fatal(count)
		}
		must(t, disk.Flush())
		count, err = disk.ReadAt(read, 3*block)
		if must(t, err); count != len(read) || !bytes.Equal(read, written) {
			t.Fatalf("disk %s: %d bytes, other data", name, count)
		}
		must(t, disk.WriteZeroes(4*block, 2*block, fipsee.Unmap))
		must(t, disk.Discard(0, block))
		_, err = disk.ReadAt(read, 3*block)
		must(t, err)
		if copy(written[block:], make([]byte, 2*block)); !bytes.Equal(read, written) {
			t.Fatalf("disk %s: zeroes changed other blocks", name)
		}
		must(t, disk.Close())
	}
	image, err := os.ReadFile(served.directory + "/b.img")
	if must(t, err); !bytes.Equal(image[6*block:7*block], noise(5<<20, 1)[3*block:4*block]) {
		t.Fatal("the file has other data")
	}
}

// Of a structure with pointers, too: C gets the bytes alone.
func TestABufferMayBePartOfAnything(t *testing.T) {
	type page struct {
		before *page
		data   [block]byte
		after  []*page
	}
	disk := serve(t, "a=memory:1M").open(fipsee.Options{Disk: "a"})
	p := &page{after: []*page{{}}}
	p.before = p
	copy(p.data[:], noise(block, 6))
	_, err := disk.WriteAt(p.data[:], block)
	must(t, err)
	p.data = [block]byte{}
	_, err = disk.ReadAt(p.data[:], block)
	if must(t, err); !bytes.Equal(p.data[:], noise(block, 6)) {
		t.Fatal("other data")
	}
}

func TestADiskEndsWithEOF(t *testing.T) {
	disk := serve(t, "a=memory:1M").open(fipsee.Options{Disk: "a"})
	info, err := disk.Info()
	if must(t, err); info.Size != 1<<20 || info.Queues != 1 || info.Capabilities&fipsee.CanWrite == 0 {
		t.Fatalf("%+v", info)
	}
	data := noise(1<<20, 2)
	_, err = disk.WriteAt(data, 0)
	must(t, err)
	p := make([]byte, 4*block)
	count, err := disk.ReadAt(p, info.Size-block)
	if count != block || err != io.EOF || !bytes.Equal(p[:block], data[len(data)-block:]) {
		t.Fatal(count, err)
	}
	if count, err = disk.ReadAt(p, info.Size); count != 0 || err != io.EOF {
		t.Fatal(count, err)
	}
	if count, err = disk.ReadAt(p, 1<<62); count != 0 || err != io.EOF {
		t.Fatal(count, err)
	}
	if count, err = disk.ReadAt(nil, 0); count != 0 || err != nil {
		t.Fatal(count, err)
	}
	// A disk wants whole blocks: a buffer of some, and a writer that brings none of its own.
	var all bytes.Buffer
	copied, err := io.CopyBuffer(struct{ io.Writer }{&all}, io.NewSectionReader(disk, 0, 1<<40), make([]byte, 24*block))
	if must(t, err); copied != info.Size || !bytes.Equal(all.Bytes(), data) {
		t.Fatal(copied)
	}
	_, err = disk.WriteAt(p, info.Size-block)
	wants(t, err, syscall.ENXIO, "end")
}

func TestDisksAreListed(t *testing.T) {
	served := serve(t, "r=memory:1M,ro", "a=memory:16M", "b=file:DIR/b.img,size=16M,block=4096")
	disks, err := fipsee.List(served.socket)
	must(t, err)
	wanted := []fipsee.ListedDisk{
		{Name: "a", Size: 16 << 20, BlockBytes: 512},
		{Name: "b", Size: 16 << 20, BlockBytes: 4096},
		{Name: "r", Size: 1 << 20, BlockBytes: 512, ReadOnly: true},
	}
	if !reflect.DeepEqual(disks, wanted) {
		t.Fatalf("%+v", disks)
	}
	_, err = fipsee.List(served.directory + "/none")
	wants(t, err, fs.ErrNotExist, "no such socket")
	_, err = fipsee.List("a\x00b")
	wants(t, err, syscall.EINVAL, "zero byte")
}

func TestMisuseIsRefusedWithWords(t *testing.T) {
	served := serve(t, "a=memory:1M", "r=memory:1M,ro")
	disk := served.open(fipsee.Options{Disk: "a"})
	p := make([]byte, block)
	_, err := disk.ReadAt(p, 100)
	wants(t, err, syscall.EINVAL, "multiples")
	_, err = disk.WriteAt(p[:100], 0)
	wants(t, err, syscall.EINVAL, "multiples")
	_, err = disk.ReadAt(p, -block)
	wants(t, err, syscall.EINVAL, "negative")
	wants(t, disk.Discard(0, -block), syscall.EINVAL, "negative")
	_, err = disk.NewMemory(0)
	wants(t, err, syscall.EINVAL, "positive")
	_, err = disk.Queue(1)
	wants(t, err, syscall.EINVAL, "no queue")
	_, err = served.open(fipsee.Options{Disk: "r"}).WriteAt(p, 0)
	wants(t, err, syscall.EROFS, "")

	_, err = fipsee.Open(fipsee.Options{Disk: "zebra", Socket: served.socket})
	wants(t, err, fs.ErrNotExist, "no disk 'zebra' that user ")
	_, err = fipsee.Open(fipsee.Options{Disk: "a", Socket: served.directory + "/none"})
	wants(t, err, fs.ErrNotExist, "no such socket")
	_, err = fipsee.Open(fipsee.Options{Disk: "a\x00b"})
	wants(t, err, syscall.EINVAL, "zero byte")
	_, err = fipsee.Open(fipsee.Options{Disk: "a", Socket: served.socket, Exclusive: true})
	wants(t, err, syscall.EBUSY, "")
	var typed *fipsee.Error
	if !errors.As(err, &typed) || typed.Op != "open" || typed.Errno != syscall.EBUSY {
		t.Fatalf("%#v", err)
	}

	must(t, disk.Close())
	_, err = disk.ReadAt(p, 0)
	wants(t, err, fs.ErrClosed, "closed")
	wants(t, disk.Close(), fs.ErrClosed, "closed")
}

// Wait for n results; each must be that of a token never seen before.
func reap(t *testing.T, queue *fipsee.Queue, n int) map[uint64]error {
	t.Helper()
	seen, results := map[uint64]error{}, make([]fipsee.Result, 7)
	for len(seen) < n {
		count, err := queue.Wait(results, deadline)
		must(t, err)
		if count == 0 {
			t.Fatalf("%d of %d results came", len(seen), n)
		}
		for _, result := range results[:count] {
			if _, again := seen[result.Token]; again {
				t.Fatalf("token %d came twice", result.Token)
			}
			seen[result.Token] = result.Err()
		}
	}
	return seen
}

func TestBatchesMoveDataInSharedMemory(t *testing.T) {
	served := serve(t, "a=memory:16M")
	disk := served.open(fipsee.Options{Disk: "a", Queues: 2, Depth: 16})
	queue := served.queue(disk, 0)
	memory, err := disk.NewMemory(34 * block)
	must(t, err)
	data := memory.Bytes()
	copy(data, noise(16*block, 3))
	piece := func(index int) []byte { return data[index*block : (index+1)*block] }
	for index := 0; index < 16; index++ {
		must(t, queue.StageWrite(piece(index), int64(15-index)*block, 0, uint64(index)))
	}
	wants(t, queue.StageFlush(99), syscall.EAGAIN, "reap")
	_, err = queue.ReadAt(piece(0), 0)
	wants(t, err, syscall.EBUSY, "reap")
	for token, err := range reap(t, queue, 16) {
		if must(t, err); token > 15 {
			t.Fatal(token)
		}
	}
	for index := 0; index < 8; index++ {
		pieces := [][]byte{piece(16 + 2*index), piece(17 + 2*index)}
		must(t, queue.StageReadv(pieces, int64(2*index)*block, uint64(index)))
	}
	must(t, queue.StageRead(piece(32), 1<<40, 1<<63))
	must(t, queue.StageWriteZeroes(15*block, block, 0, 20))
	must(t, queue.StageDiscard(1<<20, block, 21))
	must(t, queue.StageFlush(22))
	must(t, queue.Submit())
	for token, err := range reap(t, queue, 12) {
		if token == 1<<63 {
			wants(t, err, syscall.ENXIO, "")
		} else {
			must(t, err)
		}
	}
	for index := 0; index < 15; index++ {
		if !bytes.Equal(piece(16+index), piece(15-index)) {
			t.Fatal("another block is at ", index)
		}
	}
	must(t, queue.StageWritev([][]byte{piece(0), piece(1)}, 0, fipsee.Durable, 1))
	must(t, reap(t, queue, 1)[1])
	if count, err := queue.Outstanding(); err != nil || count != 0 {
		t.Fatal(count, err)
	}
	if count, err := queue.Reap(make([]fipsee.Result, 1)); err != nil || count != 0 {
		t.Fatal(count, err)
	}
	// Go's own memory is none of the disk's.
	foreign := make([]byte, 1<<20)
	foreign = foreign[-uintptr(unsafe.Pointer(&foreign[0]))%block:][:block]
	wants(t, queue.StageRead(foreign, 0, 1), syscall.EFAULT, "")
	wants(t, queue.StageReadv([][]byte{foreign}, 0, 1), syscall.EFAULT, "")
	wants(t, queue.StageWritev(make([][]byte, 257), 0, 0, 1), syscall.EINVAL, "256")
	must(t, memory.Free())
	wants(t, memory.Free(), syscall.EINVAL, "freed before")

	// The other queue is the disk's own, until it is taken, too.
	_, err = disk.ReadAt(make([]byte, block), 0)
	must(t, err)
	served.queue(disk, 1)
	_, err = disk.ReadAt(make([]byte, block), 0)
	wants(t, err, syscall.EBUSY, "Options.Queues")
}

func TestEventsReachEachQueue(t *testing.T) {
	served := serve(t, "b=file:DIR/b.img,size=16M")
	disk := served.open(fipsee.Options{Disk: "b"})
	queue := served.queue(disk, 0)
	resize := exec.Command(program(t, "fipsee"), "--connect", served.socket, "resize", "b", "32M")
	if said, err := resize.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	// A flush, or the event instead of its result.
	limit, event, results := time.Now().Add(deadline), fipsee.NoEvent, make([]fipsee.Result, 1)
	for event != fipsee.Resized {
		count, err := queue.Outstanding()
		if must(t, err); count == 0 {
			must(t, queue.StageFlush(1))
		}
		_, err = queue.Wait(results, deadline)
		must(t, err)
		event, err = queue.NextEvent()
		if must(t, err); time.Now().After(limit) {
			t.Fatal("no event came")
		}
	}
	info, err := disk.Info()
	if must(t, err); info.Size != 32<<20 {
		t.Fatal(info.Size)
	}
}

func TestADiskOutlivesItsDaemon(t *testing.T) {
	served := serve(t, "b=file:DIR/b.img,size=16M")
	disk := served.open(fipsee.Options{Disk: "b", Queues: 2})
	queue := served.queue(disk, 0)
	memory, err := disk.NewMemory(block)
	must(t, err)
	data := noise(block, 4)
	copy(memory.Bytes(), data)
	must(t, queue.StageWrite(memory.Bytes(), 5*block, 0, 7))
	served.kill()
	_, err = disk.ReadAt(make([]byte, block), 0)
	wants(t, err, syscall.ENOTCONN, "")
	_, err = queue.Wait(make([]fipsee.Result, 1), deadline)
	wants(t, err, syscall.ENOTCONN, "")
	wants(t, disk.Reconnect(0), syscall.ECONNREFUSED, "")
	served.start()
	must(t, disk.Reconnect(deadline))
	// What was staged was submitted again.
	must(t, reap(t, queue, 1)[7])
	p := make([]byte, block)
	_, err = disk.ReadAt(p, 5*block)
	if must(t, err); !bytes.Equal(p, data) {
		t.Fatal("other data")
	}
}

func TestBlockingCallsReconnect(t *testing.T) {
	served := serve(t, "b=file:DIR/b.img,size=16M")
	disk := served.open(fipsee.Options{Disk: "b", Reconnect: deadline})
	served.kill()
	written := make(chan error)
	go func() {
		_, err := disk.WriteAt(noise(block, 5), 0)
		written <- err
	}()
	served.start()
	must(t, <-written)
	p := make([]byte, block)
	_, err := disk.ReadAt(p, 0)
	if must(t, err); !bytes.Equal(p, noise(block, 5)) {
		t.Fatal("other data")
	}
}

func TestGoroutinesShareADisk(t *testing.T) {
	served := serve(t, "a=memory:16M")
	disk := served.open(fipsee.Options{Disk: "a", Queues: 2})
	var all sync.WaitGroup
	failed := make(chan error, 16)
	for index := int64(0); index < 8; index++ {
		all.Add(1)
		go func(index int64) {
			defer all.Done()
			p := make([]byte, 16*block)
			for round := int64(0); round < 50; round++ {
				data, offset := noise(16*block, index*100+round), index<<20
				if _, err := disk.WriteAt(data, offset); err != nil {
					failed <- err
					return
				}
				if _, err := disk.ReadAt(p, offset); err != nil || !bytes.Equal(p, data) {
					failed <- errors.New("other data, or an error: " + served.socket)
					return
				}
				// Misuse beside it: each call has its own message.
				if _, err := disk.ReadAt(p, -1); err == nil || !strings.Contains(err.Error(), "negative") {
					failed <- err
				}
				if _, err := disk.ReadAt(p, 1); err == nil || !strings.Contains(err.Error(), "offset 1 and") {
					failed <- err
				}
			}
		}(index)
	}
	all.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	// Close waits for calls, and those after it fail.
	closing := make(chan error)
	go func() {
		for {
			if _, err := disk.ReadAt(make([]byte, block), 0); err != nil {
				closing <- err
				return
			}
		}
	}()
	must(t, disk.Close())
	wants(t, <-closing, fs.ErrClosed, "closed")
}
