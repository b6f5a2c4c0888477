package fipsee

// #include "wrap.h"
import "C"

import (
	"io/fs"
	"syscall"
	"unsafe"
)

// An Error says what was wrong and what to do. It matches its errno, and what Go's standard library makes of it:
// errors.Is(err, syscall.ENOTCONN), errors.Is(err, fs.ErrNotExist).
type Error struct {
	Op      string        // "open", "read", ...
	Errno   syscall.Errno // see "Errors" in fipsee_client.h
	Message string
}

func (e *Error) Error() string {
	return "fipsee: " + e.Op + ": " + e.Message
}

// Unwrap returns Errno.
func (e *Error) Unwrap() error {
	return e.Errno
}

// What a call returned: a count, or its error.
func get(op string, o C.struct_outcome) (int, error) {
	if o.code >= 0 {
		return int(o.code), nil
	}
	defer C.free(unsafe.Pointer(o.message))
	return 0, &Error{Op: op, Errno: syscall.Errno(-o.code), Message: C.GoString(o.message)}
}

func invalid(op, message string) error {
	return &Error{Op: op, Errno: syscall.EINVAL, Message: message}
}

// A closed disk fails with an error that is fs.ErrClosed.
type closedError struct{ op string }

func (e *closedError) Error() string {
	return "fipsee: " + e.op + ": the disk is closed; open it again"
}

func (e *closedError) Unwrap() error {
	return fs.ErrClosed
}
