// Package fipsee uses the disks that a Fip-see daemon serves over shared memory. It calls libfipsee by cgo.
//
//	disk, err := fipsee.Open(fipsee.Options{Disk: "a"}) // on the daemon of $FIPSEE_SOCKET
//	if err != nil {
//		log.Fatal(err) // says what was wrong and what to do
//	}
//	defer disk.Close()
//	block := make([]byte, 4096)
//	if _, err := disk.ReadAt(block, 0); err != nil {
//		log.Fatal(err)
//	}
//
// Offsets and lengths are in bytes, and multiples of the disk's logical block size (Info.BlockBytes).
//
// A Disk is an io.ReaderAt and an io.WriterAt. A Queue has batches, whose data is in Memory that the daemon also maps:
//
//	queue, err := disk.Queue(0)
//	...
//	memory, err := disk.NewMemory(16 << 12)
//	...
//	for index := 0; index < 16; index++ {
//		block := memory.Bytes()[index<<12 : (index+1)<<12]
//		if err := queue.StageRead(block, int64(index)<<12, uint64(index)); err != nil {
//			...
//		}
//	}
//	results := make([]fipsee.Result, 16)
//	for done := 0; done < 16; {
//		count, err := queue.Wait(results, -1) // submits, too
//		...
//		done += count
//	}
//
// A write is durable once a Flush that began after its completion has ended, or on its own completion with Durable.
// Requests in flight at the same time are done in any order.
//
// A call occupies a thread while it waits, as a system call does. There is no context.Context: a request cannot be taken
// back from the daemon. Queue.Wait has a timeout, and a call fails when the daemon is gone.
//
// Linux only. The guide has examples that are run: docs/guide/go.md.
package fipsee
