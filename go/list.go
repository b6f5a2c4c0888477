package fipsee

// #include "wrap.h"
import "C"

import (
	"strings"
	"unsafe"
)

// A ListedDisk is a disk that this user may open.
type ListedDisk struct {
	Name       string // for Options.Disk
	Size       int64  // in bytes
	BlockBytes int    // logical block size
	ReadOnly   bool   // no client may write it
}

// List returns the disks that this user may open at the daemon's socket, in the order of their names. "" is the default socket, as in
// Options. It opens none. Its errors are those of Open; EOPNOTSUPP: the daemon is too old to list.
func List(socket string) ([]ListedDisk, error) {
	const op = "list"
	if strings.IndexByte(socket, 0) >= 0 {
		return nil, invalid(op, "the socket's path has a zero byte in it")
	}
	var path *C.char
	if socket != "" {
		path = C.CString(socket)
		defer C.free(unsafe.Pointer(path))
	}
	var list *C.struct_fipsee_disk_list
	if _, err := get(op, C.wrap_list_open(path, &list)); err != nil {
		return nil, err
	}
	defer C.fipsee_list_close(list)
	disks := []ListedDisk{}
	for {
		var c C.struct_fipsee_listed_disk
		if count, err := get(op, C.wrap_list_next(list, &c)); count == 0 || err != nil {
			return disks, err
		}
		disks = append(disks, ListedDisk{
			Name:       C.GoString(c.name),
			Size:       int64(c.capacity_bytes),
			BlockBytes: int(c.block_bytes),
			ReadOnly:   c.flags&C.FIPSEE_LISTED_READ_ONLY != 0,
		})
	}
}
