// Package pods is the local pods that are captured: this process is in their network namespaces, with sockets there to
// which rules (package capture) lead what the pod opens, what others open to it, and what it asks of DNS. It finds the
// namespaces by the pods' processes, is told of them by the node's CNI plugin, or has them named by files; enters pods that
// come, leaves those that go, and has another node proxy on the node take over and give back.
//
// It promises: rules are set only when somebody listens for what they lead here, and stay when this process ends, so that what is
// the mesh's is refused until the next one is there and never leaves in plain text; what is done in a pod is one thing at a time, and no pod waits for another
// one's kernel or files; of two node proxies the one that began last has all new connections, and what the other one
// carries goes on; a pod that is not captured is a problem that says why.
//
// It does not carry a connection, end a tunnel, judge an application or know what an address means: it hands listeners
// to its [Parent], and dials for it from where a pod is. Linux only.
package pods
