local CTSDATA, HANDSHAKE = 4, 9
local RAW_ADDR, CQ_DATA, CONNID = 0x0001, 0x0002, 0x8000

local soft = Proto("softefa", "Software EFA device")
local rdm = Proto("efa_rdm", "EFA RDM v4")

local s = {
  direction = ProtoField.uint8("softefa.direction", "direction", base.DEC, { [0] = "out", [1] = "in" }),
  op = ProtoField.uint8("softefa.op", "op", base.DEC, { [0] = "send", [1] = "read", [2] = "write" }),
  status = ProtoField.uint8("softefa.status", "status", base.DEC, statuses),
  src_qpn = ProtoField.uint16("softefa.src_qpn", "source queue pair", base.DEC),
  dst_qpn = ProtoField.uint16("softefa.dst_qpn", "destination queue pair", base.DEC),
  len = ProtoField.uint32("softefa.len", "bytes", base.DEC),
  src_gid = ProtoField.ipv6("softefa.src_gid", "source GID"),
  dst_gid = ProtoField.ipv6("softefa.dst_gid", "destination GID"),
  imm = ProtoField.uint32("softefa.imm", "immediate", base.HEX),
  rkey = ProtoField.uint32("softefa.rkey", "remote key", base.HEX),
  raddr = ProtoField.uint64("softefa.raddr", "remote address", base.HEX),
}
soft.fields = { s.direction, s.op, s.status, s.src_qpn, s.dst_qpn, s.len, s.src_gid, s.dst_gid, s.imm, s.rkey, s.raddr }

local makers = { [8] = ProtoField.uint8, [16] = ProtoField.uint16, [32] = ProtoField.uint32, [64] = ProtoField.uint64 }
local f, fields = {}, {}
local function field(key, proto_field)
  f[key] = proto_field
  fields[#fields + 1] = proto_field
end
for _, d in ipairs(field_list) do
  field("." .. d.name, makers[d.bits]("efa_rdm." .. d.name, d.name, d.base, d.names, nil, d.meaning))
end
field("type", ProtoField.uint8("efa_rdm.type", "type", base.DEC, types))
field("version", ProtoField.uint8("efa_rdm.version", "version", base.DEC))
field("flags", ProtoField.uint16("efa_rdm.flags", "flags", base.HEX))
field("addr", ProtoField.uint64("efa_rdm.iov.addr", "addr", base.HEX))
field("len", ProtoField.uint64("efa_rdm.iov.len", "len", base.DEC))
field("key", ProtoField.uint64("efa_rdm.iov.key", "key", base.HEX))
field("gid", ProtoField.ipv6("efa_rdm.raw_addr.gid", "gid"))
field("qpn", ProtoField.uint16("efa_rdm.raw_addr.qpn", "qpn", base.DEC))
field("raw_connid", ProtoField.uint32("efa_rdm.raw_addr.connid", "connid", base.HEX))
field("cq_data", ProtoField.uint64("efa_rdm.cq_data", "cq_data", base.HEX))
field("opt_connid", ProtoField.uint32("efa_rdm.opt.connid", "connid", base.HEX))
field("features", ProtoField.uint64("efa_rdm.features", "features", base.HEX))
field("host_id", ProtoField.uint64("efa_rdm.host_id", "host_id", base.HEX))
field("device_version", ProtoField.uint32("efa_rdm.device_version", "device_version", base.HEX))
field("user_qpn", ProtoField.uint32("efa_rdm.user_recv_qp.qpn", "user_recv_qpn", base.DEC))
field("user_qkey", ProtoField.uint32("efa_rdm.user_recv_qp.qkey", "user_recv_qkey", base.HEX))
field("hmem_p2p", ProtoField.uint8("efa_rdm.hmem_p2p", "hmem_p2p", base.DEC))
field("payload", ProtoField.bytes("efa_rdm.payload", "payload"))
field("payload_len", ProtoField.uint32("efa_rdm.payload_len", "payload length", base.DEC))
rdm.fields = fields

local short = ProtoExpert.new("efa_rdm.short", "packet too short", expert.group.MALFORMED, expert.severity.ERROR)
local strange = ProtoExpert.new("efa_rdm.unknown", "no EFA RDM v4 packet", expert.group.PROTOCOL, expert.severity.WARN)
rdm.experts = { short, strange }

local function has(flags, bit)
  return math.floor(flags / bit) % 2 == 1
end

local function names_of(value, list)
  local names = {}
  for _, pair in ipairs(list) do
    if has(value, pair[2]) then names[#names + 1] = pair[1] end
  end
  return table.concat(names, "|")
end

-- Walks a packet: each step takes bytes, and stops the walk when there are too few.
local function walker(buf, tree)
  local w = { at = 0, ok = true }
  function w.take(n, key)
    if not w.ok or w.at + n > buf:len() then
      if w.ok then tree:add_proto_expert_info(short) end
      w.ok = false
      return nil
    end
    local range = buf(w.at, n)
    w.at = w.at + n
    if key and n > 0 then tree:add_le(f[key], range) end
    return range
  end
  return w
end

local function iovs(w, buf, tree, name, count)
  if count > 4 then
    tree:add_proto_expert_info(strange, name .. " count " .. count)
    w.ok = false
    return
  end
  for i = 1, count do
    if w.at + 24 > buf:len() then w.take(24) return end
    local t = tree:add(rdm, buf(w.at, 24), name .. " " .. i)
    t:add_le(f.addr, buf(w.at, 8))
    t:add_le(f.len, buf(w.at + 8, 8))
    t:add_le(f.key, buf(w.at + 16, 8))
    w.at = w.at + 24
  end
end

local function req_options(w, buf, tree, flags)
  if has(flags, RAW_ADDR) then
    local len = w.take(4)
    local addr = len and w.take(len:le_uint())
    if addr and addr:len() >= 32 then
      local t = tree:add(rdm, addr, "raw address")
      t:add(f.gid, addr(0, 16))
      t:add_le(f.qpn, addr(16, 2))
      t:add_le(f.raw_connid, addr(20, 4))
    end
  end
  if has(flags, CQ_DATA) then w.take(8, "cq_data") end
  if has(flags, CONNID) then w.take(4, "opt_connid") end
end

local function handshake(w, tree, flags, extra)
  for i = 1, extra - 3 do
    local word = w.take(8, i == 1 and "features" or nil)
    if not word then return end
    if i == 1 then tree:append_text(", features: " .. names_of(word:le_uint64():tonumber(), features)) end
  end
  if has(flags, CONNID) then w.take(4, "opt_connid") w.take(4) end
  if has(flags, 0x0001) then w.take(8, "host_id") end
  if has(flags, 0x0002) then w.take(4, "device_version") w.take(4) end
  if has(flags, 0x0004) then w.take(4, "user_qpn") w.take(4, "user_qkey") end
  if has(flags, 0x0008) then w.take(1, "hmem_p2p") w.take(7) end
end

function rdm.dissector(buf, pinfo, tree)
  pinfo.cols.protocol = "EFA RDM"
  if buf:len() < 4 then
    tree:add(rdm, buf()):add_proto_expert_info(short)
    return
  end
  local ty, flags = buf(0, 1):uint(), buf(2, 2):le_uint()
  local row, name = rows[ty], types[ty] or ("type " .. ty)
  local t = tree:add(rdm, buf(), "EFA RDM v4, " .. name)
  t:add(f.type, buf(0, 1))
  t:add(f.version, buf(1, 1))
  local flag_list = (row and row.req) and req_flags or (ty == HANDSHAKE and shake_flags or ctl_flags)
  t:add_le(f.flags, buf(2, 2)):append_text(" " .. names_of(flags, flag_list))
  pinfo.cols.info = name
  if not row or buf(1, 1):uint() ~= 4 then
    t:add_proto_expert_info(strange)
    return
  end

  local value = {}
  -- Releases 1.10 to 1.13 leave out the last word of EOR.
  local header = (ty == 7 and buf:len() == 12) and 12 or row.len
  for _, d in ipairs(row.fields) do
    local key, at, width, pad = d[1], d[2], d[3], d[4]
    if at + width <= buf:len() then
      local range = buf(at, width)
      local shown = t:add_le(f["." .. key], range)
      if pad then
        shown:set_hidden()
      else
        value[key] = width == 8 and range:le_uint64():tonumber() or range:le_uint()
        local text = width == 8 and tostring(range:le_uint64()) or tostring(value[key])
        if key == "tag" then text = "0x" .. range:le_uint64():tohex() end
        if key ~= "connid" then pinfo.cols.info:append(" " .. key .. "=" .. text) end
      end
    end
  end

  local w = walker(buf, t)
  w.take(header)
  if row.rma_iov then iovs(w, buf, t, "rma_iov", value.rma_iov_count or 0) end
  if row.req then req_options(w, buf, t, flags) end
  if ty == HANDSHAKE then handshake(w, t, flags, value.nextra_p3 or 3) end
  if ty == CTSDATA and has(flags, CONNID) then w.take(4, "opt_connid") w.take(4) end
  if w.ok and row.read_iov then iovs(w, buf, t, "read_iov", value.read_iov_count or 0) end
  local left = buf:len() - w.at
  if w.ok and left > 0 then
    t:add(f.payload, buf(w.at, left))
    t:add(f.payload_len, left):set_generated()
    pinfo.cols.info:append(" payload=" .. left)
  end
end

function soft.dissector(buf, pinfo, tree)
  pinfo.cols.protocol = "softefa"
  if buf:len() < 64 or buf(0, 1):uint() ~= 1 or buf(1, 1):uint() < 64 or buf(1, 1):uint() > buf:len() then
    pinfo.cols.info = "no header of the software EFA device"
    return 0
  end
  local len = buf(1, 1):uint()
  local op, status = buf(3, 1):uint(), buf(4, 1):uint()
  local t = tree:add(soft, buf(0, len))
  t:add(s.direction, buf(2, 1))
  t:add(s.op, buf(3, 1))
  t:add(s.status, buf(4, 1))
  t:add_le(s.src_qpn, buf(8, 2))
  t:add_le(s.dst_qpn, buf(10, 2))
  t:add_le(s.len, buf(12, 4))
  t:add(s.src_gid, buf(16, 16))
  t:add(s.dst_gid, buf(32, 16))
  if has(buf(5, 1):uint(), 1) then t:add_le(s.imm, buf(48, 4)) end
  if op ~= 0 then
    t:add_le(s.rkey, buf(52, 4))
    t:add_le(s.raddr, buf(56, 8))
  end
  pinfo.cols.src = tostring(buf(16, 16):ipv6())
  pinfo.cols.dst = tostring(buf(32, 16):ipv6())
  if buf:len() > len then
    rdm.dissector(buf(len):tvb(), pinfo, tree)
  else
    local name = op == 1 and "RDMA_READ" or (op == 2 and "RDMA_WRITE" or "SEND")
    pinfo.cols.info = name .. " " .. buf(12, 4):le_uint() .. " bytes"
  end
  if status ~= 0 then pinfo.cols.info:append(" FAILED: " .. (statuses[status] or status)) end
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, soft)
