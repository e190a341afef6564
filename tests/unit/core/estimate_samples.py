# ruff: noqa: E501, RUF001
"""Texts of many scripts and kinds, written for this test, to hold the token estimate to real tokenizers."""

ENGLISH = """The night ferry left the harbour a little after eleven, with most of its lights already out. On the upper
deck two men were arguing, quietly and without much heat, about the price of a second-hand engine. "It isn't worth
half of what he wants," the older one said, "and you know it." The other shrugged. He had been awake since four in
the morning, he'd driven three hundred kilometres through the rain, and by now he would have paid almost anything to
be allowed to sleep. Below them the car deck smelled of diesel and wet wool. A child was crying somewhere between the
trucks; its mother walked up and down, humming the same five notes over and over again. Nobody complained. The crew
had seen the forecast, and they moved with the careful, unhurried speed of people who expect a long night and would
rather not talk about it.
"""

CHINESE = """傍晚的时候，雨终于停了。老城区的石板路上积着浅浅的水，映出两旁店铺刚刚亮起的灯光。卖面的老板把炉子重新搬到门口，
一边擦桌子，一边和隔壁修表的师傅聊天。他们说起今年的收成，说起城外新修的铁路，也说起各自离家多年的孩子。师傅摘下放大镜，叹了一口气：
“机器越来越聪明，我的眼睛却越来越不行了。”老板笑了笑，给他端来一碗热汤。街角的学生们撑着伞跑过，书包里的笔记本电脑和课本撞得咚咚作响。
模型推理服务的调度问题并不复杂：如果每个请求都能按照到达的顺序得到处理，而且没有人插队，那么等待的时间就是可以预测的。真正困难的是在
资源不足的时候保持公平，并且把原因清楚地告诉每一个正在等待的人。
"""

JAPANESE = """駅前の小さな喫茶店は、朝の七時になると決まって同じ顔ぶれでいっぱいになる。新聞を広げる会社員、参考書をにらむ高校生、
そして窓際の席でゆっくりとコーヒーを飲む老夫婦。マスターは注文を聞かなくても、それぞれの好みをよく知っている。「今日は少し苦めにしておきましたよ」と
言いながら、彼はカップをそっと置いた。外では冷たい風が吹いていて、街路樹の葉がひらひらと落ちていく。サーバーのメンテナンスは深夜に行われる予定だったが、
バックアップの検証に思ったより時間がかかり、担当者は始発電車が動き出すまでキーボードの前を離れることができなかった。それでも、データが一件も失われずに
済んだことを確認したときには、疲れよりも安心のほうがずっと大きかったという。
"""

KOREAN = """비가 그친 뒤의 골목은 조용했다. 가게 주인은 젖은 의자를 닦으며 오늘 장사가 어떨지 혼자 중얼거렸고, 건너편 세탁소에서는
라디오 소리가 작게 흘러나왔다. 학교가 끝난 아이들이 가방을 흔들며 뛰어가다가 물웅덩이 앞에서 멈추더니, 서로 먼저 건너라고 등을 떠밀었다.
할머니 한 분이 그 모습을 보고 웃으면서 천천히 지나갔다. 서버가 요청을 처리하는 순서는 먼저 들어온 것이 먼저 나가는 방식이 가장 공평하다고
생각하기 쉽지만, 실제로는 각각의 요청이 필요로 하는 자원의 크기가 다르기 때문에 그렇게 단순하지 않다. 대기열의 길이를 제한하고, 기다리는
시간을 정직하게 알려 주고, 더 이상 처리할 수 없을 때에는 그 사실을 바로 말해 주는 것이 결국 사용자에게 가장 도움이 되는 방법이다.
"""

RUSSIAN = """К вечеру метель улеглась, и над деревней повисла такая тишина, что было слышно, как скрипит снег под сапогами
сторожа. Он обошёл амбары, постучал в окно почты и постоял у колодца, глядя на редкие огни за рекой. Завтра обещали
привезти новое оборудование для станции, и инженер, приехавший из города, уже третий день не мог найти себе места.
Он проверял чертежи, пересчитывал нагрузку, писал длинные письма и тут же рвал их. Хозяйка дома только качала головой
и подкладывала дров в печь: всё, мол, успеется, лишь бы дорога до утра не пропала.
"""

ARABIC = """وصل القطار إلى المحطة متأخرا بعض الشيء، فنزل المسافرون بسرعة وتفرقوا في شوارع المدينة القديمة. كان بائع القهوة
يرتب أكوابه على الطاولة الصغيرة ويبتسم لكل من يمر أمامه. قال له أحد الشبان إن الطقس سيتغير غدا وإن المطر قادم من جهة
البحر، فهز الرجل رأسه وأجاب بأن المزارعين ينتظرون هذا الخبر منذ شهور. في الجهة المقابلة جلست طالبة تقرأ كتابا عن تاريخ
الحساب وتكتب ملاحظاتها في دفتر أزرق، ولم ترفع عينيها عن الصفحة حتى أطفئت المصابيح وأغلقت المكتبة أبوابها.
"""

HINDI = """शाम होते ही बाज़ार में भीड़ बढ़ने लगी थी। दुकानदार अपनी दुकानों के आगे पानी छिड़क रहे थे और गरम जलेबियों की खुशबू
दूर तक फैल रही थी। एक बूढ़ा आदमी धीरे-धीरे चलता हुआ पुल के पास पहुँचा और वहाँ बैठे बच्चों को अपने गाँव की कहानियाँ सुनाने लगा।
बच्चे ध्यान से सुनते रहे, कभी हँसते और कभी सवाल पूछते। नदी के उस पार मंदिर की घंटियाँ बज रही थीं और आसमान में पहला तारा
दिखाई देने लगा था। सबको मालूम था कि कल से परीक्षा शुरू होगी, फिर भी किसी का घर लौटने का मन नहीं था।
"""

THAI = """ฝนหยุดตกแล้วแต่ถนนในตลาดยังเปียกอยู่ แม่ค้าขายผลไม้กางร่มผืนใหญ่ออกแล้วจัดมะม่วงเรียงเป็นแถวอย่างสวยงาม เด็กชายคนหนึ่งจูงจักรยาน
ผ่านมาและถามว่าวันนี้มีขนุนหรือเปล่า เธอหัวเราะแล้วบอกให้เขากลับมาใหม่ตอนเย็น ที่ท่าเรือมีคนรอเรือข้ามฟากอยู่หลายสิบคน บางคนอ่านหนังสือ
บางคนคุยโทรศัพท์ และบางคนก็ยืนมองแม่น้ำเงียบๆ โดยไม่รีบร้อนไปไหน
"""

GERMAN = """Am frühen Morgen lag dichter Nebel über den Feldern, und die Straßenlaternen am Ortsrand brannten noch immer.
Der Bäcker öffnete die Fensterläden, während seine Tochter die Brötchen in große Körbe füllte. Für die Eröffnung der
neuen Bibliothek hatten sich überraschend viele Gäste angekündigt; der Bürgermeister übte seine Begrüßungsrede zum
vierten Mal und strich dabei jedes überflüssige Wort. Natürlich würde es Verzögerungen geben, das wussten alle. Aber
die Geschwindigkeit, mit der die Handwerker in den letzten Wochen gearbeitet hatten, ließ auf ein gutes Ende hoffen.
"""

SPANISH = """Cuando llegó el otoño, la fábrica ya llevaba dos meses cerrada y en el pueblo casi nadie hablaba de otra cosa.
Algunos decían que volvería a abrir después de Navidad; otros, más pesimistas, habían empezado a vender los muebles y a
preguntar por trabajo en la capital. ¿Qué íbamos a hacer nosotros? Mi abuela, que había conocido años peores, seguía
levantándose a las seis para regar los geranios del balcón. Decía que la paciencia también es una forma de valentía, y
que ningún invierno, por largo que parezca, ha durado jamás más de cuatro meses.
"""

PYTHON = '''class TokenBucket:
    """Allow `rate` events a second, with bursts of at most `size`."""

    def __init__(self, rate: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0 or size < 1:
            raise ValueError(f"expected rate > 0 and size >= 1, got {rate!r} and {size!r}")
        self._rate = rate
        self._size = size
        self._clock = clock
        self._level = float(size)
        self._stamp = clock()

    def take(self, count: int = 1) -> bool:
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._stamp) * self._rate)
        self._stamp = now
        if self._level < count:
            return False
        self._level -= count
        return True


async def main(argv: list[str]) -> int:
    bucket = TokenBucket(rate=12.5, size=100)
    results = {name: [] for name in ("granted", "refused")}
    async for index, request in aenumerate(read_requests(argv[1])):
        key = "granted" if bucket.take(request.cost) else "refused"
        results[key].append((index, request.id))
    print(json.dumps({key: len(value) for key, value in results.items()}, indent=2))
    return 0 if not results["refused"] else 1
'''

C_CODE = """static int queue_push(struct queue *q, const void *item, size_t size)
{
\tstruct node *n;
\tunsigned long flags;

\tif (!q || !item || size > MAX_ITEM_SIZE)
\t\treturn -EINVAL;
\tn = malloc(sizeof(*n) + size);
\tif (n == NULL)
\t\treturn -ENOMEM;
\tmemcpy(n->data, item, size);
\tn->size = size;
\tn->next = NULL;
\tspin_lock_irqsave(&q->lock, flags);
\tif (q->tail)
\t\tq->tail->next = n;
\telse
\t\tq->head = n;
\tq->tail = n;
\tif (++q->length > q->high_water)
\t\tq->high_water = q->length;
\tspin_unlock_irqrestore(&q->lock, flags);
\tfor (int i = 0; i < 8; i++)
\t\tq->mask[i] ^= (uint32_t)(0x9e3779b9u * (i + 1)) >> (i & 7);
\treturn 0;
}
"""

JAVASCRIPT = """export function debounce(fn, { wait = 250, leading = false } = {}) {
  let timer = null;
  let lastArgs;
  return function debounced(...args) {
    lastArgs = args;
    if (leading && timer === null) fn.apply(this, lastArgs);
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = null;
      if (!leading) fn.apply(this, lastArgs);
    }, wait);
  };
}

const items = await Promise.all(ids.map(async (id) => (await fetch(`/api/items/${id}?v=2`)).json()));
document.querySelectorAll("#list > li.item").forEach((el, i) => {
  el.textContent = items[i]?.title ?? "(untitled)";
  el.classList.toggle("is-done", !!items[i]?.done);
});
"""

JSON_TEXT = """{"orders": [{"id": 48213, "customer": {"name": "R. Okafor", "country": "NG"}, "lines": [{"sku": "AX-100-B",
"quantity": 3, "price": 19.95}, {"sku": "QT-7", "quantity": 12, "price": 0.5}], "paid": true, "note": null}, {"id": 48214,
"customer": {"name": "L. Lindqvist", "country": "SE"}, "lines": [], "paid": false, "note": "call before delivery"}]}
"""

NUMBERS = """timestamp,host,cpu,mem,rx_bytes,tx_bytes
2025-03-01T00:00:00Z,web-01,12.5,48.2,1048576,734003
2025-03-01T00:01:00Z,web-01,13.1,48.3,1099512,801220
2025-03-01T00:02:00Z,web-02,97.8,91.7,88129004,5501823
2025-03-01T00:03:00Z,web-03,0.4,12.0,20114,9921
"""

EMOJI = """😀😃😄😁😆😅🤣😂🙂🙃😉😊😇🥰😍🤩😘😗☺️😚😙🥲😋😛😜🤪😝🤑🤗🤭🤫🤔🤐🤨😐😑😶😏😒🙄😬🤥😌😔😪🤤😴😷🤒🤕🤢🤮🤧🥵🥶🥴😵🤯🤠🥳
👍👎👏🙏💪🔥✨🎉🚀💡⚠️✅❌❤️💔👀🐶🐱🐭🐹🍎🍊🍋🍌⚽🏀🏈🚗🚕🚙🏠🏡🌍🌎🌏⭐🌙☀️☁️⛄👩‍💻👨‍👩‍👧‍👦🏳️‍🌈🇰🇷🇯🇵🇺🇸👍🏽🤷‍♀️
"""

MARKDOWN = """## Installing

1. Download the archive from the *releases* page and check its signature.
2. Unpack it: `tar xzf tool-2.4.1.tar.gz -C /opt`.
3. Add `/opt/tool/bin` to your `PATH`.

| Option | Default | Meaning |
|--------|---------|---------|
| `--jobs N` | 4 | how many jobs run side by side |
| `--quiet` | off | print errors only |

> **Note:** on some systems you need `sudo`. See [the manual](https://example.org/manual#install) for details.

```sh
$ tool build --jobs 8 ./src && echo "done"
```
"""

MIXED = """오류 메시지는 다음과 같습니다: `ConnectionResetError: [Errno 104] Connection reset by peer` (파일 server.py, 214행).
中文说明：请先运行 `pip install -r requirements.txt`，然后设置环境变量 API_KEY。The retry limit is 3, 즉 최대 세 번까지 다시
시도합니다。エラーが続く場合は、ログファイル（/var/log/app.log）を確認してください。Thanks! 🙏
"""

SAMPLES = {name.lower(): text for name, text in list(globals().items()) if name.isupper() and isinstance(text, str)}
