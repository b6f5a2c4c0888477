package fipsee_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fipsee"
)

// A limit for a machine that hangs; no step is expected to take long.
const deadline = 240 * time.Second

// The fipseed that ships, serving disks for one test.
type daemon struct {
	t         *testing.T
	directory string
	socket    string
	disks     []string
	process   *exec.Cmd
}

func program(t *testing.T, name string) string {
	dist := os.Getenv("FIPSEE_DIST")
	if dist == "" {
		t.Fatal("set FIPSEE_DIST to the prefix that `cargo xtask dist` filled, target/dist")
	}
	return filepath.Join(dist, "bin", name)
}

// DIR/ in the description of a disk is the test's folder.
func serve(t *testing.T, disks ...string) *daemon {
	directory := t.TempDir()
	served := &daemon{t: t, directory: directory, socket: filepath.Join(directory, "s")}
	for _, disk := range disks {
		served.disks = append(served.disks, "--disk="+strings.ReplaceAll(disk, "DIR/", directory+"/"))
	}
	served.start()
	t.Cleanup(served.kill)
	return served
}

func (d *daemon) start() {
	d.t.Helper()
	d.process = exec.Command(program(d.t, "fipseed"), append([]string{"--log-level=error", "--listen=" + d.socket}, d.disks...)...)
	d.process.Stderr = os.Stderr
	if err := d.process.Start(); err != nil {
		d.t.Fatal(err)
	}
	limit := time.Now().Add(deadline)
	for !d.listens() {
		if time.Now().After(limit) {
			d.t.Fatal("the daemon does not listen")
		}
		time.Sleep(time.Millisecond)
	}
}

// The admin socket is made last: once it is there, all others are.
func (d *daemon) listens() bool {
	probe := func(kind int, path string) bool {
		descriptor, err := syscall.Socket(syscall.AF_UNIX, kind, 0)
		if err != nil {
			d.t.Fatal(err)
		}
		defer syscall.Close(descriptor)
		return syscall.Connect(descriptor, &syscall.SockaddrUnix{Name: path}) == nil
	}
	return probe(syscall.SOCK_STREAM, d.socket+".admin") && probe(syscall.SOCK_SEQPACKET, d.socket)
}

func (d *daemon) kill() {
	// It was killed already.
	_ = d.process.Process.Kill()
	_ = d.process.Wait()
}

func (d *daemon) open(options fipsee.Options) *fipsee.Disk {
	d.t.Helper()
	options.Socket = d.socket
	disk, err := fipsee.Open(options)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = disk.Close() })
	return disk
}

func (d *daemon) queue(disk *fipsee.Disk, index int) *fipsee.Queue {
	d.t.Helper()
	queue, err := disk.Queue(index)
	must(d.t, err)
	return queue
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
