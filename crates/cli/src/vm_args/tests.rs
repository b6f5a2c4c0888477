use super::*;

fn arguments(vmm: Vmm) -> Arguments {
    Arguments {
        net: Vec::new(),
        disks: Vec::new(),
        vmm,
        memory: 4096,
        device_only: false,
        queues: 2,
        queue_size: None,
        sockets: Vec::new(),
        target: 'a',
        json: false,
    }
}

fn device(disk: &str, socket: &str) -> Device {
    Device { disk: disk.to_owned(), socket: socket.to_owned() }
}

fn lines(arguments: &Arguments, devices: &[Device]) -> String {
    render(&options(arguments, devices).expect("options"))
}

#[test]
fn memory_is_shared_and_the_socket_named_for_each_hypervisor() {
    let devices = [device("a", "/run/a.sock")];
    let lines = |vmm| lines(&arguments(vmm), &devices);
    let text = lines(Vmm::Qemu);
    for part in [
        "-object memory-backend-memfd,id=fipsee-memory,size=4096M,share=on \\\n",
        "-machine memory-backend=fipsee-memory",
        "-m 4096M",
        "socket,id=fipsee-a,path=/run/a.sock,reconnect=1",
        "vhost-user-blk-pci,chardev=fipsee-a,num-queues=2\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        lines(Vmm::CloudHypervisor),
        "--memory size=4096M,shared=on \\\n--disk vhost_user=on,socket=/run/a.sock,num_queues=2,queue_size=256\n"
    );
    assert_eq!(lines(Vmm::Crosvm), "--mem size=4096 \\\n--vhost-user block,socket=/run/a.sock\n");
    let text = firecracker(&devices.iter().map(drive).collect::<Vec<_>>());
    assert!(text.contains("http://localhost/drives/a") && text.contains("\"socket\":\"/run/a.sock\"}'"), "{text}");
}

#[test]
fn several_disks_share_one_memory_and_a_machine_that_has_it_gets_none() {
    let devices = [device("a", "/run/a.sock"), device("b", "/run/b.sock")];
    let text = lines(&arguments(Vmm::Qemu), &devices);
    assert_eq!(text.matches("memory-backend-memfd").count(), 1, "{text}");
    for id in ["fipsee-a", "fipsee-b"] {
        assert_eq!(text.matches(&format!("id={id},")).count(), 1, "{text}");
        assert_eq!(text.matches(&format!("chardev={id},")).count(), 1, "{text}");
    }
    let with = |vmm| Arguments { device_only: true, queue_size: Some(128), ..arguments(vmm) };
    let text = lines(&with(Vmm::Qemu), &devices);
    assert!(text.starts_with("-chardev") && !text.contains("memory") && text.contains("num-queues=2,queue-size=128"), "{text}");
    assert_eq!(
        lines(&with(Vmm::CloudHypervisor), &devices),
        "--disk vhost_user=on,socket=/run/a.sock,num_queues=2,queue_size=128 \
         vhost_user=on,socket=/run/b.sock,num_queues=2,queue_size=128\n"
    );
}

#[test]
fn paths_that_a_shell_or_an_option_would_split_are_quoted_or_refused() {
    let text = lines(&arguments(Vmm::Qemu), &[device("a", "/run/a b,c")]);
    assert!(text.contains("-chardev 'socket,id=fipsee-a,path=/run/a b,,c,reconnect=1'"));
    for vmm in [Vmm::CloudHypervisor, Vmm::Crosvm] {
        let error = options(&arguments(vmm), &[device("a", "/run/a,b")]).expect_err("a comma").to_string();
        assert!(error.contains("/run/a,b has a comma"), "{error}");
    }
}

#[test]
fn memory_is_whole_mebibytes() {
    assert_eq!(parse_memory("4G"), Ok(4096));
    for text in ["0", "1000", "512K"] {
        assert!(parse_memory(text).expect_err(text).contains("512M or 4G"), "{text}");
    }
}
